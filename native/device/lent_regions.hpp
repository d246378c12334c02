// The part of a job's block that lies in regions of its round, which the job has only while it needs them.
//
// The block's addresses are fixed, the regions behind them are not. This part of the block consists of places of one
// region each. A place that is given back keeps its mapping, and when the place is taken again, the same region is
// tried first. In a round that repeats, members therefore soon take their regions without a system call. No tensor
// lies in a place that is given back, so nothing reads or writes through such a mapping.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ledger.hpp"
#include "place_memory.hpp"

namespace tensile {

class LentRegions {
 public:
  // Without `memory`, regions are only counted.
  LentRegions(Ledger ledger, const Claim& claim, std::uint32_t places, std::unique_ptr<PlaceMemory> memory);

  // Gives all places back, and leaves their addresses without memory.
  ~LentRegions();
  LentRegions(const LentRegions&) = delete;
  LentRegions& operator=(const LentRegions&) = delete;

  // Take these places, except those that the job has. False if that took longer than `limit`: then call this again.
  // The gates of a round see to it that all can be had as soon as all members have joined the round.
  bool take_for(const std::vector<std::uint32_t>& places, std::chrono::nanoseconds limit);

  // Give these places back, after the last use of their bytes, for which this waits.
  void give(const std::vector<std::uint32_t>& places);

  std::uint64_t held_bytes() const noexcept { return held_ * region_bytes_; }
  std::uint64_t mapped_count() const noexcept { return mapped_count_; }  // of mappings made so far

 private:
  struct Place {
    std::optional<std::uint64_t> region;  // the region that is mapped here
    bool held = false;
  };

  void take_again(Place& place, std::uint32_t number);
  bool take_any(Place& place, std::uint32_t number);
  bool take_region(Place& place, std::uint32_t number, std::uint64_t region);
  void prepare(Place& place, std::uint32_t number, std::uint64_t region, bool backed);
  Place& place(std::uint32_t number);

  Ledger ledger_;
  const Claim claim_;
  const std::uint64_t region_bytes_;
  const std::unique_ptr<PlaceMemory> memory_;
  std::vector<Place> places_;
  std::uint64_t held_ = 0;
  std::uint64_t mapped_count_ = 0;
  std::uint64_t next_ = 0;  // the region after the one that was found last
};

}  // namespace tensile
