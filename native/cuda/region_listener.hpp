// Follows the broker's changes of the device's regions, on a thread of a trainer.
//
// The controller gives memory back to the driver when other programs need it. The memory is free only when every
// process has unmapped it, and a trainer may read a table for minutes before its main thread answers a message. So a
// thread unmaps the regions at once. It may do so because the regions are absent in the ledger: no job owns them.
#pragma once

#include <functional>
#include <thread>

#include "cuda/region_changes.hpp"
#include "shared_memory.hpp"

namespace tensile::cuda {

class RegionListener {
 public:
  // Makes one change, with the descriptors that follow it on the socket, and answers for each batch of them.
  using Apply = std::function<void(int socket, const RegionChange& change)>;

  // Start the thread. `socket` is connected to the broker; the caller keeps it.
  RegionListener(int socket, std::uint64_t region_count, Apply apply);

  // Ends the thread, after the change that it makes at the moment.
  ~RegionListener();
  RegionListener(const RegionListener&) = delete;
  RegionListener& operator=(const RegionListener&) = delete;

  // In a forked child, where the thread does not exist: never wait for it. The listener must not be destroyed then.
  void abandon();

 private:
  void run() noexcept;

  const FileDescriptor socket_;
  const std::uint64_t region_count_;
  const Apply apply_;
  std::thread thread_;
};

}  // namespace tensile::cuda
