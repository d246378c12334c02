#include "cpu_device.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace tensile {

// The swap file, addressed by addresses of the host pool, as the pool and the lanes of one device use it. Each lane
// has its own thread and its own buffer; the host's direct accesses share one buffer and are serialized.
class CpuDevice::Swap {
 public:
  explicit Swap(const std::string& directory) : file_(directory) {}

  // Set the pool address that stands for offset 0 of the file.
  void begin_at(const std::byte* begin) noexcept { begin_ = begin; }

  HostSupply supply(const std::shared_ptr<Swap>& self) const {
    HostSupply supply;
    supply.add = [self](std::byte* address, std::size_t size_bytes) {
      self->file_.reserve({self->offset(address), size_bytes});
    };
    supply.remove = [self](std::byte* address, std::size_t size_bytes) {
      self->file_.give_back({self->offset(address), size_bytes});
    };
    supply.move = [self](std::byte* to, const std::byte* from, std::size_t size_bytes) {
      self->move(to, from, size_bytes);
    };
    supply.unit_bytes = SwapFile::block_bytes;
    supply.is_memory = false;
    return supply;
  }

  void write(const std::byte* host, const std::byte* from, std::size_t size_bytes, SwapFile::Buffer& buffer) {
    file_.write(offset(host), from, size_bytes, buffer);
  }
  void read(std::byte* to, const std::byte* host, std::size_t size_bytes, SwapFile::Buffer& buffer) {
    file_.read(offset(host), to, size_bytes, buffer);
  }

  void write(const std::byte* host, const std::byte* from, std::size_t size_bytes) {
    const std::lock_guard lock(mutex_);
    write(host, from, size_bytes, buffer_);
  }
  void read(std::byte* to, const std::byte* host, std::size_t size_bytes) {
    const std::lock_guard lock(mutex_);
    read(to, host, size_bytes, buffer_);
  }

  bool is_direct() const noexcept { return file_.is_direct(); }

 private:
  std::uint64_t offset(const std::byte* address) const { return static_cast<std::uint64_t>(address - begin_); }

  // Copy towards lower addresses, part by part through a temporary buffer, so that no part is overwritten before it
  // is read.
  void move(const std::byte* to, const std::byte* from, std::size_t size_bytes) {
    const std::lock_guard lock(mutex_);
    SwapFile::Buffer between;
    for (std::size_t done = 0; done < size_bytes; done += between.size_bytes()) {
      const std::size_t part_bytes = std::min(between.size_bytes(), size_bytes - done);
      read(between.bytes(), from + done, part_bytes, buffer_);
      write(to + done, between.bytes(), part_bytes, buffer_);
    }
  }

  SwapFile file_;
  const std::byte* begin_ = nullptr;
  std::mutex mutex_;
  SwapFile::Buffer buffer_;
};

CpuDevice::CpuDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes,
                     const std::string& swap_directory, const ArenaShape& arena)
    : CpuDevice(std::move(ledger), claim, host_pool_bytes, arena, std::make_shared<Swap>(swap_directory)) {}

CpuDevice::CpuDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes, const ArenaShape& arena,
                     const std::shared_ptr<Swap>& swap)
    : MachineDevice(std::move(ledger), claim, host_pool_bytes, arena,
                    {swap->supply(swap),
                     {[swap, buffer = std::make_shared<SwapFile::Buffer>()](std::byte* to, const std::byte* from,
                                                                            std::size_t size_bytes) {
                        swap->write(to, from, size_bytes, *buffer);
                      },
                      Lane::Pace::none},
                     {[swap, buffer = std::make_shared<SwapFile::Buffer>()](std::byte* to, const std::byte* from,
                                                                            std::size_t size_bytes) {
                        swap->read(to, from, size_bytes, *buffer);
                      },
                      Lane::Pace::none}}),
      swap_(swap) {
  swap_->begin_at(pool_begin());
}

void CpuDevice::host_write(const std::byte* host, const std::byte* from, std::size_t size_bytes) {
  check_buffer(host, size_bytes);
  swap_->write(host, from, size_bytes);
}

void CpuDevice::host_read(std::byte* to, const std::byte* host, std::size_t size_bytes) {
  check_buffer(host, size_bytes);
  swap_->read(to, host, size_bytes);
}

bool CpuDevice::is_direct() const noexcept { return swap_->is_direct(); }

}  // namespace tensile
