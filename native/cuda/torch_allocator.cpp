#include "cuda/torch_allocator.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/torch_error.hpp"
#include "fault.hpp"

namespace tensile::cuda {
namespace {

StreamHandle handle(CUstream_st* stream) { return reinterpret_cast<StreamHandle>(stream); }

thread_local bool outside_regions = false;  // whether this thread's allocations come from outside the regions

// The state behind the functions that torch calls. torch passes no object, so a process has one instance.
class TorchAllocator {
 public:
  void serve_from(CudaDevice* device) {
    if (device != nullptr) device->at_end([this, device] { forget(device); });
    const std::lock_guard lock(mutex_);
    device_ = device;
    serving_ = nullptr;
    known_ = nullptr;
    others_.clear();
    refusal_ = {};
  }

  int serve(const tensile_arena_hook* hook) {
    const std::lock_guard lock(mutex_);
    serving_ = hook;
    if (hook != nullptr) known_ = hook;
    return 0;
  }

  void* allocate(std::size_t size_bytes, int ordinal, StreamHandle stream) {
    if (size_bytes == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    try {
      return allocated(size_bytes, ordinal, stream);
    } catch (const Fault& fault) {
      last_fault_ = fault;
      if (fault.kind() == Fault::Kind::memory) throw_out_of_memory(fault.what());
      throw;
    }
  }

  Refusal take_refusal() {
    const std::lock_guard lock(mutex_);
    return std::exchange(refusal_, Refusal{});
  }

  void raise_told(std::string_view words) {
    const std::lock_guard lock(mutex_);
    if (!last_fault_ || words.find(last_fault_->what()) == std::string_view::npos) return;
    throw Fault(*std::exchange(last_fault_, std::nullopt));
  }

  void free(void* address, StreamHandle stream) {
    const std::lock_guard lock(mutex_);
    if (address == nullptr || device_ == nullptr) return;
    if (const auto others = others_.extract(address)) {
      for (const StreamHandle other : others.mapped()) device_->order_after_free(other);
    }
    device_->order_after_free(stream);
    release(address);
  }

  void record(void* address, StreamHandle stream) {
    const std::lock_guard lock(mutex_);
    if (address == nullptr || device_ == nullptr) return;
    // Each stream is added once, because torch may announce it in every iteration.
    std::vector<StreamHandle>& streams = others_[address];
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }

 private:
  // Forget a device that ends. Memory of the device that torch frees afterwards no longer exists.
  void forget(const CudaDevice* device) {
    const std::lock_guard lock(mutex_);
    if (device_ != device) return;
    device_ = nullptr;
    serving_ = nullptr;
    known_ = nullptr;
    others_.clear();
  }

  void check(int ordinal) const {
    if (device_ == nullptr) {
      throw Fault(Fault::Kind::device, "torch asks for memory of a GPU, and no device serves it",
                  "Open the job's device before anything uses CUDA.");
    }
    if (ordinal != device_->regions().shape().device) {
      throw Fault(Fault::Kind::device,
                  text("torch asks for memory of device ", ordinal, ", the job's is device ",
                       device_->regions().shape().device),
                  "Use one device per job.");
    }
  }

  void* allocated(std::size_t size_bytes, int ordinal, StreamHandle stream) {
    check(ordinal);
    void* address = outside_regions ? nullptr : take(size_bytes);
    if (address == nullptr) {
      if (!outside_regions) note_refusal(size_bytes);
      return outside(size_bytes);
    }
    try {
      device_->order_before_use(reinterpret_cast<DeviceAddress>(address), size_bytes, stream);
    } catch (...) {
      release(address);
      throw;
    }
    return address;
  }

  void note_refusal(std::size_t size_bytes) {
    const std::uint64_t needed_bytes = device_->arena().usage().allocated_bytes + size_bytes;
    refusal_.needed_bytes = std::max(refusal_.needed_bytes, needed_bytes);
    if (needed_bytes <= device_->regions().shape().capacity_bytes()) {
      refusal_.grantable_bytes = std::max(refusal_.grantable_bytes, needed_bytes);
    }
  }

  // Return null if the job's regions have no room.
  void* take(std::size_t size_bytes) {
    if (serving_ != nullptr) return serving_->allocate(serving_->context, size_bytes);
    try {
      return device_->arena().allocate(size_bytes);
    } catch (const Fault& fault) {
      if (fault.kind() != Fault::Kind::memory) throw;
      return nullptr;
    }
  }

  // Allocate memory outside the regions, for allocations that no plan has, such as torch's own workspaces.
  void* outside(std::size_t size_bytes) {
    const DeviceAddress address = device_->allocate_outside(size_bytes);
    if (address == 0) {
      throw Fault(Fault::Kind::memory,
                  text("the job's regions have no ", size_bytes, " bytes in one piece for torch, and ",
                       device_->outside_bytes(), " bytes outside them are in use"),
                  "Ask the controller for a larger grant, or follow a plan with a lower peak.");
    }
    return reinterpret_cast<void*>(address);
  }

  // Give memory back to the allocator that it came from.
  void release(void* address) {
    if (device_->free_outside(reinterpret_cast<DeviceAddress>(address))) return;
    if (known_ != nullptr && known_->release(known_->context, address) == 0) return;
    device_->arena().free(static_cast<std::byte*>(address));
  }

  std::mutex mutex_;
  CudaDevice* device_ = nullptr;
  const tensile_arena_hook* serving_ = nullptr;
  const tensile_arena_hook* known_ = nullptr;
  std::optional<Fault> last_fault_;
  Refusal refusal_;
  std::unordered_map<void*, std::vector<StreamHandle>> others_;  // further streams that use an allocation
};

// Never destroyed, because torch frees its last tensors while the process ends.
TorchAllocator& torch_allocator() {
  static auto* const allocator = new TorchAllocator();
  return *allocator;
}

}  // namespace

void allocate_beside(bool wanted) { outside_regions = wanted; }

void raise_told(std::string_view words) { torch_allocator().raise_told(words); }

Refusal take_refusal() { return torch_allocator().take_refusal(); }

void serve_torch(CudaDevice* device) { torch_allocator().serve_from(device); }

}  // namespace tensile::cuda

using tensile::cuda::handle;
using tensile::cuda::torch_allocator;

#define TENSILE_EXPORT __attribute__((visibility("default")))

extern "C" {

TENSILE_EXPORT void* tensile_cuda_allocate(std::size_t size, int device, CUstream_st* stream) {
  return torch_allocator().allocate(size, device, handle(stream));
}

TENSILE_EXPORT void tensile_cuda_free(void* address, std::size_t /*size*/, int /*device*/, CUstream_st* stream) {
  try {
    torch_allocator().free(address, handle(stream));
  } catch (const tensile::Fault&) {
    // Destructors call this, so it must not throw. The memory stays allocated, and the next call reports the error of
    // the device.
  }
}

TENSILE_EXPORT void tensile_cuda_record_stream(void* address, CUstream_st* stream) {
  torch_allocator().record(address, handle(stream));
}

TENSILE_EXPORT int tensile_cuda_serve(const tensile_arena_hook* hook) { return torch_allocator().serve(hook); }

}  // extern "C"
