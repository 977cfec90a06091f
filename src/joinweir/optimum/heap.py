"""A binary heap of numbered things, the one with the smallest key first; each knows its place."""

from __future__ import annotations

from ..compiling import kernel

ABSENT = -1


@kernel
def sift_up(key, heap, place, x):
    """Move what stands at x towards the top as far as it must."""
    thing = heap[x]
    while x > 0:
        parent = (x - 1) >> 1
        if key[heap[parent]] <= key[thing]:
            break
        heap[x] = heap[parent]
        place[heap[x]] = x
        x = parent
    heap[x] = thing
    place[thing] = x


@kernel
def sift_down(key, heap, place, x, size):
    """Move what stands at x away from the top as far as it must."""
    thing = heap[x]
    while True:
        child = 2 * x + 1
        if child >= size:
            break
        if child + 1 < size and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[heap[child]] >= key[thing]:
            break
        heap[x] = heap[child]
        place[heap[x]] = x
        x = child
    heap[x] = thing
    place[thing] = x


@kernel
def remove(key, heap, place, x, size):
    """Take out what stands at x of `size` things; the caller counts one less."""
    place[heap[x]] = ABSENT
    size -= 1
    if x < size:
        heap[x] = heap[size]
        place[heap[x]] = x
        sift_up(key, heap, place, x)
        sift_down(key, heap, place, place[heap[x]], size)
