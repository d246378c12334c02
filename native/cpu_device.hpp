// The device of a machine without a GPU, at the machine's own speed: its memory is a share of the machine's, and what
// is swapped out goes to a file on disk. The host reads and writes device memory itself, so nothing but swaps is copied
// over a link.
#pragma once

#include <memory>
#include <string>

#include "machine_device.hpp"
#include "swap_file.hpp"

namespace tensile {

// An address in the host pool is a place in the file: nothing can be read or written there but by this class.
class CpuDevice final : public MachineDevice {
 public:
  CpuDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes, const std::string& swap_directory,
            const ArenaShape& arena = {});

  // Bytes of this process into a buffer of the pool, and back, at once. No queued copy may use the buffer.
  void host_write(const std::byte* host, const std::byte* from, std::size_t size_bytes);
  void host_read(std::byte* to, const std::byte* host, std::size_t size_bytes);

  // Whether swapped bytes pass the page cache by.
  bool is_direct() const noexcept;

 private:
  class Swap;

  CpuDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes, const ArenaShape& arena,
            const std::shared_ptr<Swap>& swap);

  std::shared_ptr<Swap> swap_;
};

}  // namespace tensile
