/* The C interface through which code without C++ or Python allocates from a process's arena of device memory.
 *
 * The device that owns the arena fills in `tensile_arena_hook`, which lives as long as that device. Any thread may
 * call the functions at any time. They call neither Python nor torch, and allocate ordinary memory for their
 * book-keeping with malloc, never with posix_memalign or aligned_alloc. In a forked child the arena is closed: its
 * memory is not mapped there, `allocate` returns NULL and `release` does nothing.
 */
#ifndef TENSILE_ARENA_HOOK_H
#define TENSILE_ARENA_HOOK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* context; /* the first argument of all functions */

  /* Allocate `size` bytes with the alignment of the arena (at least 64 bytes). NULL if the arena has no room or if
   * `size` is 0: the caller then allocates elsewhere. */
  void* (*allocate)(void* context, size_t size);

  /* Release an allocation and return 0. Any other result means that `address` is not a live allocation of this arena,
   * and that nothing has changed. All addresses from `begin` up to `end` belong to this arena alone. */
  int (*release)(void* context, void* address);

  uintptr_t begin, end; /* the arena's half-open range of addresses, fixed for the lifetime of the device */

  /* The arena consists of regions of `region_bytes`, counted from `begin`. `allocate_whole` allocates from the start
   * of an empty region and continues into the following regions, which must be empty too; NULL if there is no such
   * place. An arena without regions has 1 and NULL. */
  size_t region_bytes;
  void* (*allocate_whole)(void* context, size_t size);
} tensile_arena_hook;

#ifdef __cplusplus
}
#endif

#endif /* TENSILE_ARENA_HOOK_H */
