/* Exported by the preloaded library, found by name: see shim.c. */
#ifndef TENSILE_SHIM_H
#define TENSILE_SHIM_H

#include <stdint.h>

#include "../arena_hook.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint64_t served;   /* allocations that came from the arena */
  uint64_t released; /* of those, given back */
  uint64_t refused;  /* the arena had no room: the system's allocator served them */
  uint64_t others;   /* calls of other libraries meanwhile, such as oneDNN's for scratch */
  uint64_t bytes;    /* of all that was served */
} tensile_shim_counters;

/* Serve the calling thread's tensors, and those of OpenMP threads that work for it, from now on; null stops that.
   What was served stays where it is. Returns 0, or an error number: ENOENT without torch's allocator in this
   process, EBUSY while another thread is served, ENOSPC after too many arenas, ECHILD in a forked child. */
int tensile_shim_serve(const tensile_arena_hook* hook);

void tensile_shim_count(tensile_shim_counters* counters);

#ifdef __cplusplus
}
#endif

#endif
