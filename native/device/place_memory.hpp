// The memory behind the places of a member of a round (lent_regions.hpp), as a back end maps it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ledger.hpp"
#include "shared_memory.hpp"

namespace tensile {

// Maps regions at the places of one block. The destructor leaves all places without memory; nothing may use them
// then.
class PlaceMemory {
 public:
  PlaceMemory() = default;
  virtual ~PlaceMemory() = default;
  PlaceMemory(const PlaceMemory&) = delete;
  PlaceMemory& operator=(const PlaceMemory&) = delete;

  // Wait until all work that was queued so far and uses the bytes of these places has ended. Other processes may then
  // write there.
  virtual void finish(const std::vector<std::uint32_t>& places) = 0;

  // Give a region memory that holds nothing of another job. Called before the region is mapped, and only if no member
  // of the round has had it.
  virtual void back(std::uint64_t region) = 0;

  // Map a region at a place, in the stead of the one that is mapped there.
  virtual void map(std::uint32_t place, std::uint64_t region) = 0;
};

// Places in the memory of the ledger's file. The process itself computes, so no work is ever queued.
class FilePlaces final : public PlaceMemory {
 public:
  // `begin` is the address of the first place; the addresses up to the last place are reserved and have no memory.
  FilePlaces(Ledger ledger, std::uintptr_t begin, std::uint32_t places);
  ~FilePlaces() override;

  void finish(const std::vector<std::uint32_t>&) override {}
  void back(std::uint64_t region) override;
  void map(std::uint32_t place, std::uint64_t region) override;

 private:
  Range bytes_of(std::uint64_t region) const noexcept;

  const Ledger ledger_;
  const std::uintptr_t begin_;
  const std::uint32_t places_;
  const std::uint64_t region_bytes_;
  bool mapped_ = false;
};

// Return the places from this address on; null, so that regions are only counted, if the ledger has no memory or the
// address is 0.
std::unique_ptr<PlaceMemory> file_places(Ledger ledger, std::uintptr_t begin, std::uint32_t places);

}  // namespace tensile
