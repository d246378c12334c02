// Each slot's share of the machine's pinned host memory: one word of the ledger per slot, without a stored sum.
//
// A process first announces in its own word the bytes that it is about to take, and then adds up all words. If the
// sum exceeds the limit, the process withdraws the announcement; otherwise it owns the memory and may touch it. So
// the memory in use never exceeds the limit: among all announcements that were kept, the sum of the last one was read
// when the others were already in their words. Only its owner changes a word, and after the owner's death the
// controller. So a process that is killed between any two instructions leaves no more counted than it may have had,
// and leaves no state to repair. Two processes that announce at once may both exceed the limit: each withdraws and
// tries again after a delay that differs between slots.
#pragma once

#include <cstdint>

#include "ledger_layout.hpp"
#include "regions.hpp"

namespace tensile {

// A view of the ledger's words. The ledger must outlive it.
class HostShares {
 public:
  HostShares(layout::Word* words, std::uint64_t limit_bytes) : words_(words), limit_bytes_(limit_bytes) {}

  std::uint64_t limit_bytes() const noexcept { return limit_bytes_; }
  std::uint64_t of(std::uint32_t slot) const;
  std::uint64_t sum() const;  // at most the limit, except for announcements that are about to be withdrawn

  // Count this many more bytes, before the memory is taken. Raises a memory fault if the limit would be exceeded, and
  // then changes nothing. Raises a device fault if the claim's epoch is over.
  void take(const Claim& claim, std::uint64_t size_bytes);

  // Count this many bytes less, after the memory was given back.
  void give(const Claim& claim, std::uint64_t size_bytes);

  // Reset a slot's share for a new epoch; changes by earlier epochs are refused from then on. The controller calls it
  // when the slot's process has ended.
  void begin(std::uint32_t slot, std::uint64_t epoch);

 private:
  bool change(const Claim& claim, std::uint64_t from_bytes, std::uint64_t to_bytes);
  std::uint64_t owned(const Claim& claim) const;

  layout::Word* words_;
  std::uint64_t limit_bytes_;
};

}  // namespace tensile
