/* How something that knows neither C++ nor Python allocates from a process's arena of device memory.
 *
 * `tensile_arena_hook` is filled by the device that owns the arena, and lives as long as that device. Both functions
 * may be called by any thread at any time; they call nothing of Python or torch, and take ordinary memory for their
 * book-keeping from malloc, never from posix_memalign or aligned_alloc. In a forked child the arena is closed: its
 * memory is not mapped there, `allocate` gives NULL and `release` does nothing.
 */
#ifndef TENSILE_ARENA_HOOK_H
#define TENSILE_ARENA_HOOK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* context; /* the first argument of both functions */

  /* `size` bytes, aligned as the arena is (at least 64 bytes); NULL where the arena has no room for them or `size`
   * is 0: take them elsewhere, and count it. */
  void* (*allocate)(void* context, size_t size);

  /* Gives back what `allocate` gave: 0. Anything but 0: `address` is no live allocation of this arena, and nothing
   * has changed. Every address from `begin` up to `end` belongs here and to no other allocator. */
  int (*release)(void* context, void* address);

  uintptr_t begin, end; /* the arena's range of addresses, half-open; fixed for the life of the device */

  /* The arena is handed out in regions of so many bytes from `begin` on, and `allocate_whole` is `allocate` from the
   * start of one in which nothing is, nor in those after it that are needed; NULL also where there is none. Without
   * regions: 1 and NULL. */
  size_t region_bytes;
  void* (*allocate_whole)(void* context, size_t size);
} tensile_arena_hook;

#ifdef __cplusplus
}
#endif

#endif /* TENSILE_ARENA_HOOK_H */
