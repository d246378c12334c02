// The state that all calls of the fake driver share, and the checks at the start of each call.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda.hpp"
#include "fake_queues.hpp"
#include "fault.hpp"

namespace fake_cuda {

using namespace tensile::cuda;
using tensile::text;

struct FakeEvent {
  bool timed;
  std::shared_ptr<Mark> mark;
};

// A process's handle to physical memory, which is a file.
struct Physical {
  Physical(int opened, std::size_t bytes) : file(opened), size_bytes(bytes) {}
  ~Physical() { ::close(file); }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  const int file;
  const std::size_t size_bytes;
};

struct Mapping {
  std::shared_ptr<Physical> memory;
  bool allowed = false;
};

struct Reservation {
  void* raw;
  std::size_t raw_bytes;
  std::size_t size_bytes;
};

struct State {
  std::mutex mutex;
  std::vector<std::string> violations;
  Queues queues{violations};
  std::uint64_t calls = 0;
  std::uint64_t failing_call = 0;
  Result failing_result = Result::success;
  Result lost = Result::success;
  std::string failed_call;
  bool initialized = false;
  std::uint64_t contexts = 0;  // number of retained references
  unsigned int context_flags = 0;
  std::uint64_t pushed = 0;
  Queue* default_queue = queues.make();
  Queue* side_queue = queues.make();
  std::set<Queue*> streams;
  std::map<FakeEvent*, std::unique_ptr<FakeEvent>> events;
  AllocationHandle next_handle = 1;
  std::map<AllocationHandle, std::shared_ptr<Physical>> handles;
  std::map<Address, Reservation> reservations;
  std::map<Address, Mapping> mappings;
  std::map<std::uint64_t, std::size_t> pinned;
  std::map<Address, std::size_t> plain;
};

inline State& state() {
  static State instance;
  return instance;
}

inline thread_local std::vector<Context> current;
inline thread_local bool relaxed = false;

inline int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// The unit of device memory.
inline std::size_t granularity() {
  static const auto bytes = static_cast<std::size_t>(setting("FAKE_CUDA_GRANULARITY_KB", 2048)) << 10;
  return bytes;
}

// One call of the driver: holds the lock, and knows whether the call is to fail.
class Entry {
 public:
  explicit Entry(const char* name) : lock_(state().mutex), name_(name) {
    State& now = state();
    ++now.calls;
    if (now.lost != Result::success) result_ = now.lost;
    if (now.calls == now.failing_call) {
      now.failed_call = name;
      result_ = now.failing_result;
    }
  }

  bool fails() const { return result_ != Result::success; }
  Result result() const { return result_; }
  const char* name() const { return name_; }

  // Record a violation, and return the result that the API would.
  Result refuse(Result result, const std::string& why) const {
    state().violations.push_back(text(name_, ": ", why));
    if (setting("FAKE_CUDA_HOST_COMPUTES", 0) != 0) std::fprintf(stderr, "fake CUDA: %s: %s\n", name_, why.c_str());
    return result;
  }

 private:
  std::lock_guard<std::mutex> lock_;
  const char* name_;
  Result result_ = Result::success;
};

#define ENTER(name)        \
  const Entry entry(name); \
  State& now = state();    \
  static_cast<void>(now);  \
  if (entry.fails()) return entry.result()

// Begins a call that releases a resource: the resource is released whatever the result.
#define ENTER_RELEASE(name) \
  const Entry entry(name);  \
  State& now = state()

// Refuses a call that the API forbids while a stream is captured, except in a thread in relaxed mode.
#define NEED_NO_CAPTURE()                                                \
  if (now.queues.captures() && !relaxed) {                               \
    now.queues.break_capture(entry.name());                              \
    return entry.refuse(Result::capture_unsupported, "while capturing"); \
  }

#define NEED_CONTEXT() \
  if (current.empty()) return entry.refuse(Result::invalid_context, "no context is current")

// Needs a current context only in strict mode: the API's reference does not say whether these calls need one.
#define NEED_CONTEXT_TO_MAP() \
  if (setting("FAKE_CUDA_STRICT_MAPS", 0) != 0) NEED_CONTEXT()

// Needs a current context, unless no context can be current because the driver was made to fail.
#define NEED_CONTEXT_TO_RELEASE()                                                                \
  if (current.empty() && now.failed_call != "cuCtxPushCurrent" && now.lost == Result::success) { \
    return entry.refuse(Result::invalid_context, "no context is current");                       \
  }

inline Queue* queue_of(StreamPointer stream) {
  return stream == nullptr ? state().default_queue : reinterpret_cast<Queue*>(stream);
}

inline std::size_t memory_bytes() { return static_cast<std::size_t>(setting("FAKE_CUDA_MEMORY_MB", 256)) << 20; }

inline bool is_device(DeviceNumber device) { return device >= 0 && device < setting("FAKE_CUDA_DEVICES", 1); }

// Return the physical memory to which this process has handles or mappings, each allocation once.
std::size_t physical_bytes();

// Return whether all these bytes are mapped and access to them was granted.
bool accessible(Address address, std::size_t size_bytes);

// A call of the driver: its address, and the version of CUDA in which it appeared.
struct Call {
  int version;
  void* address;
};

using Calls = std::map<std::string, Call>;

template <typename Function>
void* address_of(Function* function) {
  void* address = nullptr;
  std::memcpy(&address, &function, sizeof(address));
  return address;
}

// The calls by name: devices, contexts, host memory, copies, streams and events; and virtual memory.
const Calls& device_calls();
const Calls& memory_calls();

}  // namespace fake_cuda
