// The device of a machine without a GPU, at the machine's own speed. Device memory is a share of the machine's
// memory, and tensors are swapped out to a file on disk. The host reads and writes device memory directly, so only
// swaps are copied over a link.
#pragma once

#include <memory>
#include <string>

#include "machine_device.hpp"
#include "swap_file.hpp"

namespace tensile {

// An address in the host pool stands for an offset in the swap file: only this class can read or write there.
class CpuDevice final : public MachineDevice {
 public:
  CpuDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes, const std::string& swap_directory,
            const ArenaShape& arena = {});

  // Copy bytes of this process into a buffer of the pool, and back, before returning. No queued copy may use the
  // buffer.
  void host_write(const std::byte* host, const std::byte* from, std::size_t size_bytes);
  void host_read(std::byte* to, const std::byte* host, std::size_t size_bytes);

  // True if swapped bytes bypass the page cache.
  bool is_direct() const noexcept;

 private:
  class Swap;

  CpuDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes, const ArenaShape& arena,
            const std::shared_ptr<Swap>& swap);

  std::shared_ptr<Swap> swap_;
};

}  // namespace tensile
