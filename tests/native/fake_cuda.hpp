// A CUDA driver without a GPU, for tests: libcuda.so.1 by its calls, host memory behind its addresses.
//
// What it is for is being strict. Memory is accessible only where it is mapped and allowed; a copy's host range must
// lie in one registration; work queued on streams runs as late, as early and in as odd an order as the API allows,
// by a seed; and any two operations that touch the same bytes, one of them writing, must be ordered by stream or
// event, whether or not they happened to run in a good order. Whatever breaks a rule is a violation, kept in words.
//
// Environment, for processes that only load it: FAKE_CUDA_VERSION (12080), FAKE_CUDA_DEVICES (1),
// FAKE_CUDA_MEMORY_MB (256), FAKE_CUDA_INIT (what cuInit answers), FAKE_CUDA_LACKS (a call that is not there),
// FAKE_CUDA_IMPORT (what importing memory answers), FAKE_CUDA_STRICT_MAPS (1: memory is imported, mapped and made
// accessible only where a context is current), FAKE_CUDA_FAIL (n:code, the n-th call fails so), FAKE_CUDA_HOST_COMPUTES (1: the process computes in device memory
// itself, as if it were the default stream, which is never behind the host; races are not looked for, and violations
// are told on the error output).
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

// Nothing fails, violations are forgotten, and what is queued runs in an order of this seed from now on.
void reset(unsigned int seed = 1);

// The n-th call from now on, counted from 1, fails so; those that release something do it all the same.
void fail_call(std::uint64_t number, Result result);
std::string failed_call();  // its name; empty when it has not happened

// Every call from now on answers so.
void lose(Result result);

// What was made and not released, in words: empty when nothing is left.
std::string live();
std::string violations();

// How a thread waits in the primary context, as it was last set before the context was active.
unsigned int context_flags();

// The host memory that is pinned, as begin and size.
std::vector<std::pair<std::uint64_t, std::size_t>> pinned();

struct Access {
  std::uint64_t begin;
  std::size_t size_bytes;
  bool writes;
};

// Queue a kernel that touches these bytes of device memory.
void launch(StreamPointer stream, std::vector<Access> accesses, std::function<void()> body);

// A stream of the test's own, the same in every call, that is not counted as live.
StreamPointer side_stream();

// While held, nothing that is queued runs unless somebody waits for all of it.
void hold(bool held);

// What a stream recorded, and other streams that came from it and went back to it; made as one, any number of times.
class Graph;

// As cuStreamBeginCapture, cuStreamEndCapture and cuGraphLaunch, which torch calls and not the library.
void begin_capture(StreamPointer stream);
std::shared_ptr<const Graph> end_capture(StreamPointer stream);  // null where the capture was broken
void drop_capture(StreamPointer stream);                         // ends one that was given up, in whatever state
void replay(const std::shared_ptr<const Graph>& graph, StreamPointer stream);

// As cuThreadExchangeStreamCaptureMode with the relaxed mode, and back: what a capture forbids is this thread's own
// risk.
void relax(bool wanted);

// Run everything that is queued.
void settle();

// How many operations are queued on a stream, and wait for their turn.
std::size_t queued(StreamPointer stream);

}  // namespace fake_cuda
