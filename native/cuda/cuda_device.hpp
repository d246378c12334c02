// A GPU as one job's process uses it: memory mapped from the broker's regions, bytes accounted for in the shared
// ledger, swapped over two copy lanes beside the computation.
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
#include "pieces.hpp"

namespace tensile::cuda {

// What is ordered, by the device and without the host waiting: a copy starts after the computation that was queued
// when it was asked for, and after every queued copy that reads or writes the same bytes; computation starts after
// the copies it was told to (`compute_after`), and after those of the memory that is allocated for it. All streams
// give and take memory by way of the one that computes, so whatever frees comes before whatever takes anew.
class CudaDevice final : public Device {
  class RegionPieces;

 public:
  static constexpr std::size_t default_chunk_bytes = std::size_t{16} << 20;

  // `map` must have the ledger's regions.
  CudaDevice(const Driver& driver, Ledger ledger, const Claim& claim, RegionMap map, std::uint64_t host_pool_bytes,
             std::size_t chunk_bytes = default_chunk_bytes);
  ~CudaDevice() override;

  // Memory in the job's regions, for what `stream` does from now on; see Arena. Freed memory may be taken anew at
  // once: what was queued for it on `stream`, and copies of it, come first on the device.
  DeviceAddress allocate(std::uint64_t size_bytes, StreamHandle stream);
  DeviceAddress allocate_at(std::uint64_t offset, std::uint64_t size_bytes, StreamHandle stream);
  void free(DeviceAddress address, StreamHandle stream);

  // The same, where it is computed.
  DeviceAddress allocate(std::uint64_t size_bytes) { return allocate(size_bytes, computing_on()); }
  DeviceAddress allocate_at(std::uint64_t offset, std::uint64_t size_bytes) {
    return allocate_at(offset, size_bytes, computing_on());
  }
  void free(DeviceAddress address) { free(address, computing_on()); }

  Arena& arena() const noexcept { return arena_; }

  // What `stream` does from now on may use this memory, whoever had it: `allocate` without the book-keeping.
  void hand_to(DeviceAddress device, std::size_t size_bytes, StreamHandle stream);

  // What any stream is given this memory for from now on starts after what `stream` was given.
  void take_from(StreamHandle stream);

  // Raise the fault for what has befallen this process's hold on the device, if anything; waits for all that is
  // queued. A context that a kernel broke answers every call so, whoever made the one that found it.
  void check_context() const;

  // How many bytes were copied.
  struct Copied {
    std::uint64_t out_bytes;
    std::uint64_t in_bytes;
  };

  // The driver has begun to record what the computing stream is given (a graph), and is to record copies with it.
  // All
  // copies must be known to be done (`drain_for`). Until `end_recording` nothing is asked of the driver that it
  // refuses meanwhile: what needs it raises a fault, and memory beside the regions goes back afterwards.
  void begin_recording();

  // Computation joins the copies that were recorded; then the driver may end it too. Whatever this raises, copies are
  // made again. Returns what one run of the record copies.
  Copied end_recording();

  // The same where recording failed, after the driver has ended it.
  void give_up_recording() noexcept;

  // What was recorded was run once more.
  void count(const Copied& copied) noexcept;

  // Without a broker: give up the memory of regions in which nothing lies, before others may be granted as much.
  // Waits for all that is queued.
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

  // Call this once where the device ends, before its memory goes.
  void at_end(std::function<void()> told) { at_end_ = std::move(told); }

  // What a window over the job's regions is made of (window.hpp): whole regions, mapped a second time. Outlives none
  // of this device. Taking a region away waits for all that was queued.
  std::unique_ptr<Pieces> pieces();

  // Let so much be had from the driver beside the regions, for what no plan foresees; nothing at first. Null: no
  // more.
  void allow_outside(std::uint64_t size_bytes);
  DeviceAddress allocate_outside(std::uint64_t size_bytes);
  bool free_outside(DeviceAddress address);
  std::uint64_t outside_bytes() const;

  // Pin this much of the host pool now: a call of the driver that no iteration should wait for.
  void host_prepare(std::uint64_t size_bytes);

  const RegionMap& regions() const noexcept { return map_; }

 private:
  Ticket copy(CopyLane& lane, CopyLane& other, const CopyLane::Copy& copy);
  bool both_done(std::uint64_t out_number, std::uint64_t in_number) const;
  StreamHandle computing_on() const;
  DeviceAddress handed(DeviceAddress address, std::uint64_t size_bytes, StreamHandle stream);
  void back(Range bytes);
  void drop(Range bytes);
  void order(StreamHandle first, StreamHandle second);
  void forbid_recording(const char* what) const;
  Copied stop_recording() noexcept;
  bool holds(DeviceAddress device, std::size_t size_bytes) const;
  void check(const CopyLane::Copy& copy) const;
  bool copies_use(const std::byte* host, std::uint64_t size_bytes);
  void* show(std::uint64_t offset);
  void hide(void* taken, std::uint64_t offset);

  const Driver& driver_;
  const Ledger ledger_;
  const Claim claim_;
  Account account_;
  const PrimaryContext context_;
  RegionMap map_;
  RegionMap shown_;  // the job's regions a second time
  mutable Arena arena_;
  PinnedRanges pinned_;  // before the pool, which it pins, and that before the lanes, which copy from and to it
  HostPool pool_;
  mutable std::mutex mutex_;
  EventPool fences_;
  mutable CopyLane out_;
  mutable CopyLane in_;
  StreamHandle compute_ = 0;
  std::map<DeviceAddress, std::uint64_t> outside_;
  std::uint64_t outside_bytes_ = 0;
  std::uint64_t outside_limit_bytes_ = 0;
  std::vector<DeviceAddress> freed_;  // beside the regions, while recording, when the driver lets nothing go
  bool recording_ = false;
  bool closed_ = false;
  std::function<void()> at_end_;
};

}  // namespace tensile::cuda
