// A CUDA driver without a GPU, for tests. It exports the calls of libcuda.so.1, and its device memory is host memory.
//
// It is stricter than a real driver. Memory is accessible only where it is mapped and access was granted. A copy's
// host range must lie in one registration. Work queued on streams runs in a random order among those that the API
// allows, determined by a seed. Two operations that touch the same bytes, at least one of them writing, must be
// ordered by stream or event, even if they happened to run in the right order. The driver records each breach of a
// rule as a violation, in words.
//
// Environment variables, with their defaults, for processes that only load the library:
//   FAKE_CUDA_VERSION (12080), FAKE_CUDA_DEVICES (1), FAKE_CUDA_MEMORY_MB (256)
//   FAKE_CUDA_GRANULARITY_KB (2048)
//   FAKE_CUDA_INIT           the result of cuInit
//   FAKE_CUDA_LACKS          the name of a call that is missing
//   FAKE_CUDA_IMPORT         the result of importing memory
//   FAKE_CUDA_STRICT_MAPS    1: importing, mapping and granting access need a current context
//   FAKE_CUDA_FAIL           n:code, the n-th call fails with this result
//   FAKE_CUDA_HOST_COMPUTES  1: the process itself computes in device memory, as if it were the default stream, which
//                            is never behind the host. Races are not checked, and violations go to standard error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/api.hpp"

namespace fake_cuda {

using tensile::cuda::Result;
using tensile::cuda::StreamPointer;

// From now on no call fails, and queued work runs in an order determined by this seed. Forgets all violations.
void reset(unsigned int seed = 1);

// Make the n-th call from now on, counted from 1, fail with this result. A call that releases a resource releases it
// nevertheless.
void fail_call(std::uint64_t number, Result result);
std::string failed_call();  // the name of the call that failed; empty if none has failed yet

// Make every call from now on return this result.
void lose(Result result);

// Describe the resources that were created and not released; empty if there are none.
std::string live();
std::string violations();

// The bytes of physical memory to which this process has a handle or a mapping.
std::size_t used_bytes();

// The flags that were set last before the primary context became active: how a thread waits for the device.
unsigned int context_flags();

// The ranges of pinned host memory, as begin and size.
std::vector<std::pair<std::uint64_t, std::size_t>> pinned();

struct Access {
  std::uint64_t begin;
  std::size_t size_bytes;
  bool writes;
};

// Queue a kernel that touches these bytes of device memory.
void launch(StreamPointer stream, std::vector<Access> accesses, std::function<void()> body);

// Return a stream for tests, the same in every call. It does not count as a live resource.
StreamPointer side_stream();

// While enabled, queued work runs only when a caller waits for all of it.
void hold(bool enabled);

// The work recorded from a stream, and from other streams that joined the recording. It can be run any number of
// times.
class Graph;

// Like cuStreamBeginCapture, cuStreamEndCapture and cuGraphLaunch, which torch calls and the library does not.
void begin_capture(StreamPointer stream);
std::shared_ptr<const Graph> end_capture(StreamPointer stream);  // null if the capture was invalidated
void drop_capture(StreamPointer stream);                         // end a capture that failed, in any state
void replay(const std::shared_ptr<const Graph>& graph, StreamPointer stream);

// Like cuThreadExchangeStreamCaptureMode: enable or disable the relaxed mode, in which this thread may make calls
// that a capture otherwise forbids.
void relax(bool enabled);

// Run all queued work.
void settle();

// Return the number of operations that are queued on a stream and have not run.
std::size_t queued(StreamPointer stream);

}  // namespace fake_cuda
