// A GPU as the process of one job uses it: memory is mapped from the broker's regions, the shared ledger counts the
// bytes, and two copy lanes swap tensors while the GPU computes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "account.hpp"
#include "arena.hpp"
#include "cuda/copy_lane.hpp"
#include "cuda/region_map.hpp"
#include "cuda/resources.hpp"
#include "device.hpp"
#include "host_pool.hpp"
#include "lent_regions.hpp"
#include "pieces.hpp"

namespace tensile::cuda {

// The device keeps the following orders, without the host waiting. A copy starts after the computation that was
// queued when the copy was requested, and after every queued copy that reads or writes the same bytes. Computation
// starts after the copies given to `compute_after`, and after the copies of the memory that is allocated for it. All
// streams free and allocate memory by way of the computing stream, so the last use of freed memory comes before its
// next use.
class CudaDevice final : public Device {
  class RegionPieces;
  class RegionPlaces;

 public:
  static constexpr std::size_t default_chunk_bytes = std::size_t{16} << 20;

  // `map` must have the ledger's regions.
  CudaDevice(const Driver& driver, Ledger ledger, const Claim& claim, RegionMap map, std::uint64_t host_pool_bytes,
             std::size_t chunk_bytes = default_chunk_bytes);
  ~CudaDevice() override;

  // Memory in the job's regions, for work that is queued on `stream` from now on; see Arena. Freed memory may be
  // allocated again at once: the device first finishes the work queued on `stream` and the copies of that memory.
  DeviceAddress allocate(std::uint64_t size_bytes, StreamHandle stream);
  DeviceAddress allocate_at(std::uint64_t offset, std::uint64_t size_bytes, StreamHandle stream);
  void free(DeviceAddress address, StreamHandle stream);

  // The same for the computing stream.
  DeviceAddress allocate(std::uint64_t size_bytes) { return allocate(size_bytes, computing_on()); }
  DeviceAddress allocate_at(std::uint64_t offset, std::uint64_t size_bytes) {
    return allocate_at(offset, size_bytes, computing_on());
  }
  void free(DeviceAddress address) { free(address, computing_on()); }

  Arena& arena() const noexcept { return arena_; }

  // Order the work queued on `stream` from now on after all earlier users of this memory: `allocate` without the
  // book-keeping.
  void order_before_use(DeviceAddress device, std::size_t size_bytes, StreamHandle stream);

  // Order the work of any stream that gets memory from now on after the work queued on `stream`: `free` without the
  // book-keeping.
  void order_after_free(StreamHandle stream);

  // Wait for all queued work, and raise the fault if this process has lost its access to the device. A context that a
  // kernel broke answers every call with the error.
  void check_context() const;

  // The bytes copied in each direction.
  struct Copied {
    std::uint64_t out_bytes;
    std::uint64_t in_bytes;
  };

  // Let the broker's changes of regions wait while the driver records: call this before the driver begins, and
  // `let_regions_change` in the same thread after the driver has ended.
  void hold_regions();
  void let_regions_change() noexcept;

  // Record copies into the graph that the driver has begun to record on the computing stream. All copies must have
  // ended (`drain_for`). Until `end_recording`, operations whose driver calls are refused during recording raise a
  // fault, and memory outside the regions that is freed is given back afterwards.
  void begin_recording();

  // Join the recorded copies to the computing stream, after which the caller may end the driver's recording. Copies
  // are made again afterwards, even if this raises a fault. Returns the bytes that one run of the recording copies.
  Copied end_recording();

  // End a recording that failed, after the driver has ended its own.
  void give_up_recording() noexcept;

  // Count the copies of one more run of a recording.
  void count(const Copied& copied) noexcept;

  // Without a broker: give up the memory of regions without allocations, before other jobs may be granted as much.
  // Waits for all queued work.
  void trim();

  void move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) override;
  SlotUsage usage() const override;
  void reset_high_water() override;

  Ticket copy_out(std::byte* host, DeviceAddress device, std::size_t size_bytes) override;
  Ticket copy_in(DeviceAddress device, const std::byte* host, std::size_t size_bytes) override;
  void compute_on(StreamHandle stream) override;
  void compute_after(Ticket ticket) override;
  bool done(Ticket ticket) const override;
  bool wait_for(Ticket ticket, std::chrono::nanoseconds limit) override;
  bool drain_for(std::chrono::nanoseconds limit) override;

  std::byte* host_allocate(std::uint64_t size_bytes) override;
  void host_free(const std::byte* host) override;
  HostUsage host_usage() const override;
  std::vector<HostMove> host_pack() override;
  void host_fit(std::uint64_t free_bytes) override;

  void close() noexcept override;

  // Set the function that the destructor calls before it releases the memory.
  void at_end(std::function<void()> callback) { at_end_ = std::move(callback); }

  // The pieces of a window over the job's regions (window.hpp): whole regions, mapped a second time. They must not
  // outlive this device. Removing a piece waits for all queued work.
  std::unique_ptr<Pieces> pieces();

  // The places of a member of a round, from this address of the window on; with address 0 regions are only counted.
  // They must not outlive this device. Places are given back when all that the device was given to do in them has
  // ended, for which the host waits: another process may use the regions next, and events do not pass between
  // processes that only share memory. Raises a device fault if this process has regions of its own.
  std::unique_ptr<LentRegions> lent_regions(std::uintptr_t begin, std::uint32_t places);

  // Wait until all computation queued so far has ended.
  void finish();

  // Memory from the driver outside the regions, for allocations that no plan has. `allow_outside` sets the limit,
  // which is 0 at first. `allocate_outside` returns 0 if the limit would be exceeded; `free_outside` returns false if
  // the address is not that of such memory.
  void allow_outside(std::uint64_t size_bytes);
  DeviceAddress allocate_outside(std::uint64_t size_bytes);
  bool free_outside(DeviceAddress address);
  std::uint64_t outside_bytes() const;

  // Pin this much of the host pool now, so that no iteration has to wait for that driver call.
  void host_prepare(std::uint64_t size_bytes);

  const RegionMap& regions() const noexcept { return map_; }

 private:
  Ticket copy(CopyLane& lane, CopyLane& other, const CopyLane::Copy& copy);
  bool both_done(std::uint64_t out_number, std::uint64_t in_number) const;
  StreamHandle computing_on() const;
  DeviceAddress order_after_allocation(DeviceAddress address, std::uint64_t size_bytes, StreamHandle stream);
  void map_and_clear(Range bytes);
  void drop(Range bytes);
  void order(StreamHandle first, StreamHandle second);
  void forbid_recording(const char* reason) const;
  Copied stop_recording() noexcept;
  bool holds(DeviceAddress device, std::size_t size_bytes) const;
  void check(const CopyLane::Copy& copy) const;
  bool copies_use(const std::byte* host, std::uint64_t size_bytes);
  void* show(std::uint64_t offset);
  void hide(void* taken, std::uint64_t offset);
  void finish(const std::vector<Range>& addresses);
  void exchange(std::uint64_t shown, std::uint64_t region);
  void hide_region(std::uint64_t shown) noexcept;

  const Driver& driver_;
  const Ledger ledger_;
  const Claim claim_;
  Account account_;
  const PrimaryContext context_;
  RegionMap map_;
  RegionMap shown_;  // maps the job's regions a second time
  mutable Arena arena_;
  PinnedRanges pinned_;  // comes before the pool, which uses it; the pool comes before the lanes, which use the pool
  HostPool pool_;
  mutable std::mutex mutex_;
  EventPool fences_;
  mutable CopyLane out_;
  mutable CopyLane in_;
  StreamHandle compute_ = 0;
  std::map<DeviceAddress, std::uint64_t> outside_;
  std::uint64_t outside_bytes_ = 0;
  std::uint64_t outside_limit_bytes_ = 0;
  std::vector<DeviceAddress> freed_;   // memory outside the regions that was freed during recording, to be given back
  std::unique_lock<std::mutex> held_;  // of the broker's changes; released before the maps that it belongs to
  bool recording_ = false;
  bool closed_ = false;
  std::function<void()> at_end_;
};

}  // namespace tensile::cuda
