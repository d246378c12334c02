/* The functions that the preloaded library exports. The trainer looks them up by name: see shim.c. */
#ifndef TENSILE_SHIM_H
#define TENSILE_SHIM_H

#include <stdint.h>

#include "../arena_hook.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint64_t served;   /* allocations from the arena */
  uint64_t released; /* allocations from the arena that were released */
  uint64_t refused;  /* allocations for which the arena had no room or that it misaligned: the system served them */
  uint64_t others;   /* calls by other libraries in the served threads, such as oneDNN's for scratch memory */
  uint64_t bytes;    /* total size of all served allocations */
} tensile_shim_counters;

/* Serve the tensors of the calling thread, and of OpenMP threads that work for it, from now on; NULL stops that.
   Allocations that were served stay valid. Returns 0, or an error number: ENOENT if this process has not loaded
   torch's allocator, EBUSY while another thread is served, ENOSPC after too many arenas, ECHILD in a forked child. */
int tensile_shim_serve(const tensile_arena_hook* hook);

void tensile_shim_count(tensile_shim_counters* counters);

#ifdef __cplusplus
}
#endif

#endif
