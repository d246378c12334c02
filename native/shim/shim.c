/* A library that is preloaded into a trainer, so that torch's CPU tensors get their memory from the arena. All other
   allocations go to the system's allocator as before.

   torch allocates a tensor by the only call of posix_memalign in libc10.so (c10/core/impl/alloc_cpu.cpp; resizing a
   storage uses the same call) and releases it with free; it never passes this memory to realloc. oneDNN and other
   libraries call posix_memalign for scratch memory of their own, so the shim recognizes torch's call by its return
   address. It recognizes a free by the address that is freed, not by the caller: libc10 reaches free by a tail jump,
   which hides the caller.

   The shim serves the thread that runs the step program, while that thread asks for it, and the OpenMP threads that
   work inside its operators. A thread that loads data also creates tensors, but these are host memory and are not
   served. OpenMP keeps a team for each thread that opens parallel regions, so a thread created by an OpenMP library
   works for the thread that created it.

   The shim uses neither Python nor C++, because it runs in the trainer from the first instruction. It removes itself
   from LD_PRELOAD, so processes that the trainer starts run without it. In a forked child it serves nothing, and only
   the parent releases memory of the arena. While it serves no thread, it costs one relaxed load per posix_memalign
   call, and a few per free. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define PER_THREAD _Thread_local __attribute__((tls_model("initial-exec")))

typedef int (*memalign_function)(void**, size_t, size_t);
typedef void (*free_function)(void*);
typedef int (*create_function)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

static memalign_function next_memalign;
static free_function next_free;
static create_function next_create;

#define MOST_ARENAS 32 /* two address ranges of the device and two for calibrating operators; the rest is reserve */

static _Atomic(const tensile_arena_hook*) serving;             /* NULL: no thread is served */
static _Atomic(const tensile_arena_hook*) arenas[MOST_ARENAS]; /* all that ever served: their tensors may be alive */
static atomic_ulong program;                                   /* the thread that is served */
static atomic_bool forked;
static atomic_ulong threads;
static PER_THREAD unsigned long worker_of; /* this thread, or the thread that it works for; 0: not numbered yet */

static uintptr_t allocator_begin, allocator_end; /* libc10's code */
static atomic_uint_least64_t served, released, refused, others, bytes;

/* --- the next library's functions --------------------------------------------------------------------------- */

/* Copies the address, because ISO C does not define a cast from an object pointer to a function pointer. */
static void find(const char* name, void* function) {
  void* const symbol = dlsym(RTLD_NEXT, name);
  if (symbol == NULL) abort();
  memcpy(function, &symbol, sizeof symbol);
}

static void resolve(void) {
  if (next_free != NULL) return;
  find("posix_memalign", &next_memalign);
  find("pthread_create", &next_create);
  find("free", &next_free);
}

/* --- the caller ---------------------------------------------------------------------------------------------- */

static const char* file_of(const char* path) {
  const char* const slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

static bool begins(const char* text, const char* with) { return strncmp(text, with, strlen(with)) == 0; }

static int find_allocator(struct dl_phdr_info* object, size_t size, void* unused) {
  (void)size;
  (void)unused;
  if (!begins(file_of(object->dlpi_name), "libc10.so")) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const part = &object->dlpi_phdr[i];
    if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0) {
      allocator_begin = object->dlpi_addr + part->p_vaddr;
      allocator_end = allocator_begin + part->p_memsz;
    }
  }
  return 1;
}

static unsigned long this_thread(void) {
  if (worker_of == 0) worker_of = atomic_fetch_add(&threads, 1) + 1;
  return worker_of;
}

static bool is_openmp(const void* caller) {
  Dl_info info;
  if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) return false;
  const char* const file = file_of(info.dli_fname);
  return begins(file, "libgomp") || begins(file, "libiomp") || begins(file, "libomp");
}

typedef struct {
  void* (*run)(void*);
  void* argument;
  unsigned long worker_of;
} task;

static void* start(void* argument) {
  const task mine = *(task*)argument;
  free(argument);
  worker_of = mine.worker_of;
  return mine.run(mine.argument);
}

EXPORTED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                            void* argument) {
  resolve();
  task* openmp_task = NULL;
  if (is_openmp(__builtin_return_address(0))) openmp_task = malloc(sizeof *openmp_task);
  if (openmp_task == NULL) return next_create(thread, attributes, run, argument);
  *openmp_task = (task){run, argument, this_thread()};
  const int failed = next_create(thread, attributes, start, openmp_task);
  if (failed) free(openmp_task);
  return failed;
}

/* --- allocating ---------------------------------------------------------------------------------------------- */

static bool is_served(const void* caller) {
  if (worker_of == 0) return false; /* not numbered: `program` is 0, too, if serving has just ended */
  if (worker_of != atomic_load_explicit(&program, memory_order_relaxed)) return false;
  const bool is_torch = (uintptr_t)caller - allocator_begin < allocator_end - allocator_begin;
  if (!is_torch) atomic_fetch_add_explicit(&others, 1, memory_order_relaxed);
  return is_torch;
}

static bool allocate(const tensile_arena_hook* hook, void** address, size_t alignment, size_t size) {
  void* const memory = hook->allocate(hook->context, size);
  if (memory != NULL && ((uintptr_t)memory & (alignment - 1)) == 0) {
    atomic_fetch_add_explicit(&served, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&bytes, size, memory_order_relaxed);
    *address = memory;
    return true;
  }
  if (memory != NULL) hook->release(hook->context, memory);
  atomic_fetch_add_explicit(&refused, 1, memory_order_relaxed);
  return false;
}

EXPORTED int posix_memalign(void** address, size_t alignment, size_t size) {
  const tensile_arena_hook* const hook = atomic_load_explicit(&serving, memory_order_relaxed);
  if (hook != NULL) {
    atomic_thread_fence(memory_order_acquire);
    if (is_served(__builtin_return_address(0)) && allocate(hook, address, alignment, size)) return 0;
  }
  resolve();
  return next_memalign(address, alignment, size);
}

static const tensile_arena_hook* arena_of(const void* address) {
  for (int i = 0; i < MOST_ARENAS; ++i) {
    const tensile_arena_hook* const hook = atomic_load_explicit(&arenas[i], memory_order_relaxed);
    if (hook == NULL) break;
    atomic_thread_fence(memory_order_acquire);
    if ((uintptr_t)address - hook->begin < hook->end - hook->begin) return hook;
  }
  return NULL;
}

EXPORTED void free(void* address) {
  const tensile_arena_hook* const hook = arena_of(address);
  if (hook == NULL) {
    if (next_free == NULL) resolve();
    next_free(address);
    return;
  }
  if (atomic_load_explicit(&forked, memory_order_relaxed)) return;
  if (hook->release(hook->context, address) != 0) abort(); /* like the system's free for an invalid pointer */
  atomic_fetch_add_explicit(&released, 1, memory_order_relaxed);
}

/* --- serving ------------------------------------------------------------------------------------------------- */

static void stop_in_child(void) {
  atomic_store(&forked, true);
  atomic_store(&serving, NULL);
}

static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static void prepare(void) {
  dl_iterate_phdr(find_allocator, NULL);
  pthread_atfork(NULL, NULL, stop_in_child);
}

static bool add_arena(const tensile_arena_hook* hook) {
  for (int i = 0; i < MOST_ARENAS; ++i) {
    const tensile_arena_hook* known = NULL;
    if (atomic_compare_exchange_strong(&arenas[i], &known, hook) || known == hook) return true;
  }
  return false;
}

static int begin(const tensile_arena_hook* hook) {
  pthread_once(&prepared, prepare);
  if (allocator_begin == allocator_end) return ENOENT;
  if (atomic_load(&forked)) return ECHILD;
  unsigned long nobody = 0;
  const unsigned long mine = this_thread();
  if (!atomic_compare_exchange_strong(&program, &nobody, mine) && nobody != mine) return EBUSY;
  if (!add_arena(hook)) {
    if (nobody == 0) atomic_store(&program, 0);
    return ENOSPC;
  }
  atomic_store(&serving, hook);
  return 0;
}

EXPORTED int tensile_shim_serve(const tensile_arena_hook* hook) {
  if (hook != NULL) return begin(hook);
  if (atomic_load(&program) != this_thread()) return atomic_load(&program) == 0 ? 0 : EBUSY;
  atomic_store(&serving, NULL);
  atomic_store(&program, 0);
  return 0;
}

EXPORTED void tensile_shim_count(tensile_shim_counters* counters) {
  counters->served = atomic_load(&served);
  counters->released = atomic_load(&released);
  counters->refused = atomic_load(&refused);
  counters->others = atomic_load(&others);
  counters->bytes = atomic_load(&bytes);
}

/* --- starting ------------------------------------------------------------------------------------------------ */

/* Remove this library's entry from a list that spaces or colons separate. */
static void remove_entry(char* list, const char* entry) {
  const size_t length = strlen(entry);
  char* to = list;
  for (const char* from = list; *from != '\0';) {
    const size_t next = strcspn(from, " :");
    const size_t whole = next + (from[next] != '\0');
    if (next != length || strncmp(from, entry, length) != 0) {
      memmove(to, from, whole);
      to += whole;
    }
    from += whole;
  }
  while (to > list && (to[-1] == ' ' || to[-1] == ':')) --to;
  *to = '\0';
}

__attribute__((constructor)) static void initialize(void) {
  resolve();
  Dl_info own;
  char* const preloaded = getenv("LD_PRELOAD");
  if (preloaded == NULL || dladdr(&prepared, &own) == 0) return;
  remove_entry(preloaded, own.dli_fname);
  if (*preloaded == '\0') unsetenv("LD_PRELOAD");
}
