// The control functions of the fake driver, and the symbols that it exports.
#include "fake_cuda.hpp"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "fake_state.hpp"

namespace fake_cuda {

void reset(unsigned int seed) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  now.queues.hold(false);
  now.queues.drain_all();
  now.queues.forget();
  now.queues.seed(seed);
  now.violations.clear();
  now.calls = 0;
  now.failing_call = 0;
  now.lost = Result::success;
  now.failed_call.clear();
}

void fail_call(std::uint64_t number, Result result) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  now.failing_call = now.calls + number;
  now.failing_result = result;
}

std::string failed_call() {
  const std::lock_guard lock(state().mutex);
  return state().failed_call;
}

void lose(Result result) {
  const std::lock_guard lock(state().mutex);
  state().lost = result;
}

unsigned int context_flags() {
  const std::lock_guard lock(state().mutex);
  return state().context_flags;
}

std::vector<std::pair<std::uint64_t, std::size_t>> pinned() {
  const std::lock_guard lock(state().mutex);
  return {state().pinned.begin(), state().pinned.end()};
}

std::string live() {
  const State& now = state();
  const std::lock_guard lock(state().mutex);
  std::string remaining;
  const auto count = [&](const char* kind, std::size_t number) {
    if (number != 0) remaining += text(kind, " ", number, "; ");
  };
  count("contexts", now.contexts);
  count("pushed contexts", now.pushed);
  count("streams", now.streams.size());
  count("events", now.events.size());
  count("handles", now.handles.size());
  count("mappings", now.mappings.size());
  count("reservations", now.reservations.size());
  count("pinned ranges", now.pinned.size());
  count("plain allocations", now.plain.size());
  return remaining;
}

std::string violations() {
  const std::lock_guard lock(state().mutex);
  std::string all;
  for (const std::string& violation : state().violations) all += violation + "; ";
  return all;
}

std::size_t used_bytes() {
  const std::lock_guard lock(state().mutex);
  return physical_bytes();
}

void launch(StreamPointer stream, std::vector<Access> accesses, std::function<void()> body) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  for (const Access& access : accesses) {
    if (!accessible(access.begin, access.size_bytes)) now.violations.push_back("a kernel's memory is not accessible");
  }
  now.queues.add(*queue_of(stream), std::move(accesses), std::move(body));
}

StreamPointer side_stream() {
  const std::lock_guard lock(state().mutex);
  return reinterpret_cast<StreamPointer>(state().side_queue);
}

void begin_capture(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  state().queues.begin_capture(*queue_of(stream));
}

std::shared_ptr<const Graph> end_capture(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  return state().queues.end_capture(*queue_of(stream));
}

void drop_capture(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  state().queues.drop_capture(*queue_of(stream));
}

void replay(const std::shared_ptr<const Graph>& graph, StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  state().queues.replay(graph, *queue_of(stream));
}

void relax(bool enabled) { relaxed = enabled; }

void hold(bool enabled) {
  const std::lock_guard lock(state().mutex);
  state().queues.hold(enabled);
}

void settle() {
  const std::lock_guard lock(state().mutex);
  state().queues.drain_all();
}

std::size_t queued(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  return state().queues.queued(queue_of(stream));
}

}  // namespace fake_cuda

// --- the symbols that a driver library exports ---

static std::shared_ptr<const fake_cuda::Graph> last_capture;

static const fake_cuda::Call* find_call(const std::string& name) {
  for (const fake_cuda::Calls* calls : {&fake_cuda::device_calls(), &fake_cuda::memory_calls()}) {
    if (const auto match = calls->find(name); match != calls->end()) return &match->second;
  }
  return nullptr;
}

extern "C" {

tensile::cuda::Result cuDriverGetVersion(int* version);
tensile::cuda::Result cuGetErrorName(tensile::cuda::Result result, const char** name);
tensile::cuda::Result cuGetErrorString(tensile::cuda::Result result, const char** words);
tensile::cuda::Result cuGetProcAddress_v2(const char* symbol, void** address, int version, std::uint64_t flags,
                                          int* status);

// For a process that can only look up the driver's symbols by name: capture the side stream, and replay its last
// recording.
void* fake_cuda_side_stream();
void fake_cuda_begin_capture();
int fake_cuda_end_capture();
void fake_cuda_drop_capture();
void fake_cuda_replay();
void fake_cuda_fail_call(std::uint64_t number, int result);
const char* fake_cuda_violations();

void* fake_cuda_side_stream() { return fake_cuda::side_stream(); }
void fake_cuda_begin_capture() { fake_cuda::begin_capture(fake_cuda::side_stream()); }

int fake_cuda_end_capture() {
  last_capture = fake_cuda::end_capture(fake_cuda::side_stream());
  return last_capture == nullptr ? -1 : 0;
}

void fake_cuda_drop_capture() { fake_cuda::drop_capture(fake_cuda::side_stream()); }

void fake_cuda_replay() {
  fake_cuda::replay(last_capture, fake_cuda::side_stream());
  fake_cuda::settle();
}

void fake_cuda_fail_call(std::uint64_t number, int result) {
  fake_cuda::fail_call(number, static_cast<tensile::cuda::Result>(result));
}

const char* fake_cuda_violations() {
  static std::string message;
  message = fake_cuda::violations();
  return message.c_str();
}

tensile::cuda::Result cuDriverGetVersion(int* version) {
  *version = fake_cuda::setting("FAKE_CUDA_VERSION", 12080);
  const char* fail = std::getenv("FAKE_CUDA_FAIL");
  if (fail != nullptr) {
    char* end = nullptr;
    const auto number = std::strtoull(fail, &end, 10);
    fake_cuda::fail_call(number, static_cast<tensile::cuda::Result>(*end == ':' ? std::atoi(end + 1) : 999));
  }
  return tensile::cuda::Result::success;
}

tensile::cuda::Result cuGetErrorName(tensile::cuda::Result result, const char** name) {
  static const std::map<tensile::cuda::Result, const char*> names{
      {tensile::cuda::Result::invalid_value, "CUDA_ERROR_INVALID_VALUE"},
      {tensile::cuda::Result::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {tensile::cuda::Result::device_unavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
      {tensile::cuda::Result::ecc_uncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {tensile::cuda::Result::launch_failed, "CUDA_ERROR_LAUNCH_FAILED"},
      {tensile::cuda::Result::system_not_ready, "CUDA_ERROR_SYSTEM_NOT_READY"},
      {tensile::cuda::Result::unknown, "CUDA_ERROR_UNKNOWN"},
  };
  const auto match = names.find(result);
  *name = match == names.end() ? nullptr : match->second;
  return *name == nullptr ? tensile::cuda::Result::invalid_value : tensile::cuda::Result::success;
}

tensile::cuda::Result cuGetErrorString(tensile::cuda::Result, const char** words) {
  *words = "the fake driver's words";
  return tensile::cuda::Result::success;
}

tensile::cuda::Result cuGetProcAddress_v2(const char* symbol, void** address, int version, std::uint64_t flags,
                                          int* status) {
  *address = nullptr;
  if (version > fake_cuda::setting("FAKE_CUDA_VERSION", 12080) || flags > 2) {
    return tensile::cuda::Result::invalid_value;
  }
  const char* lacking = std::getenv("FAKE_CUDA_LACKS");
  const fake_cuda::Call* call = find_call(symbol);
  if (call == nullptr || (lacking != nullptr && std::string(symbol) == lacking)) {
    *status = 1;
    return tensile::cuda::Result::success;
  }
  *status = version < call->version ? 2 : 0;
  if (*status == 0) *address = call->address;
  return tensile::cuda::Result::success;
}

}  // extern "C"
