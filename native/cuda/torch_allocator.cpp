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

thread_local bool beside = false;

// Torch calls functions without an object, so this is one per process.
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
      told_ = fault;
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
    if (!told_ || words.find(told_->what()) == std::string_view::npos) return;
    throw Fault(*std::exchange(told_, std::nullopt));
  }

  void free(void* address, StreamHandle stream) {
    const std::lock_guard lock(mutex_);
    if (address == nullptr || device_ == nullptr) return;
    if (const auto others = others_.extract(address)) {
      for (const StreamHandle other : others.mapped()) device_->take_from(other);
    }
    device_->take_from(stream);
    release(address);
  }

  void record(void* address, StreamHandle stream) {
    const std::lock_guard lock(mutex_);
    if (address == nullptr || device_ == nullptr) return;
    std::vector<StreamHandle>& known = others_[address];  // once for each: it may be told in every iteration
    if (std::find(known.begin(), known.end(), stream) == known.end()) known.push_back(stream);
  }

 private:
  // The device ends; what of its memory is freed afterwards has gone with it.
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
    void* address = beside ? nullptr : take(size_bytes);
    if (address == nullptr) {
      if (!beside) note_refusal(size_bytes);
      return outside(size_bytes);
    }
    try {
      device_->hand_to(reinterpret_cast<DeviceAddress>(address), size_bytes, stream);
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

  // Null where the job's regions have no room.
  void* take(std::size_t size_bytes) {
    if (serving_ != nullptr) return serving_->allocate(serving_->context, size_bytes);
    try {
      return device_->arena().allocate(size_bytes);
    } catch (const Fault& fault) {
      if (fault.kind() != Fault::Kind::memory) throw;
      return nullptr;
    }
  }

  // What no plan foresaw, as torch's own workspaces are.
  void* outside(std::size_t size_bytes) {
    const DeviceAddress address = device_->allocate_outside(size_bytes);
    if (address == 0) {
      throw Fault(Fault::Kind::memory,
                  text("the job's regions have no ", size_bytes, " bytes in one piece for torch, and of what may be ",
                       "had beside them ", device_->outside_bytes(), " bytes are in use"),
                  "Ask the controller for a larger grant, or follow a plan with a lower peak.");
    }
    return reinterpret_cast<void*>(address);
  }

  // Whoever gave it takes it.
  void release(void* address) {
    if (device_->free_outside(reinterpret_cast<DeviceAddress>(address))) return;
    if (known_ != nullptr && known_->release(known_->context, address) == 0) return;
    device_->arena().free(static_cast<std::byte*>(address));
  }

  std::mutex mutex_;
  CudaDevice* device_ = nullptr;
  const tensile_arena_hook* serving_ = nullptr;
  const tensile_arena_hook* known_ = nullptr;
  std::optional<Fault> told_;
  Refusal refusal_;
  std::unordered_map<void*, std::vector<StreamHandle>> others_;  // beside its own, who uses a tensor's memory
};

// On purpose never destroyed: torch frees its last tensors when the process ends.
TorchAllocator& torch_allocator() {
  static auto* const allocator = new TorchAllocator();
  return *allocator;
}

}  // namespace

void allocate_beside(bool wanted) { beside = wanted; }

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
    // Called from destructors. The memory stays taken, and what is wrong with the device is said by the next call.
  }
}

TENSILE_EXPORT void tensile_cuda_record_stream(void* address, CUstream_st* stream) {
  torch_allocator().record(address, handle(stream));
}

TENSILE_EXPORT int tensile_cuda_serve(const tensile_arena_hook* hook) { return torch_allocator().serve(hook); }

}  // extern "C"
