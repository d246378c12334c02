// Who has how much of the machine's pinned host memory: one word of a ledger for each slot, and no sum beside them.
//
// A process announces what it is about to take in its own word and then adds all words up. Above the limit it takes
// its announcement back; otherwise the memory is its own, and only then does it touch it. So at every instant what
// is really there keeps to the limit: of all announcements that were kept, the last one's sum was read when the
// others stood in their words already. A word is changed by its owner alone, and after its death by the controller,
// so a process that is killed between any two instructions leaves no more counted than it may have had, and nothing
// to mend. Two that announce at once may both see too much: they try again, each after a time of its own.
#pragma once

#include <cstdint>

#include "ledger_layout.hpp"
#include "regions.hpp"

namespace tensile {

// The words of a ledger, which outlives this.
class HostShares {
 public:
  HostShares(layout::Word* words, std::uint64_t limit_bytes) : words_(words), limit_bytes_(limit_bytes) {}

  std::uint64_t limit_bytes() const noexcept { return limit_bytes_; }
  std::uint64_t of(std::uint32_t slot) const;
  std::uint64_t sum() const;  // of a limit's worth at most, save announcements that are about to be taken back

  // So many bytes more, before they are taken. A memory fault where the limit is in the way, and then nothing has
  // changed; a device fault where the claim's time is over.
  void take(const Claim& claim, std::uint64_t size_bytes);

  // After they were given back.
  void give(const Claim& claim, std::uint64_t size_bytes);

  // The controller's, when nothing is left of a slot's process: it has nothing, and what its epoch changes is refused.
  void begin(std::uint32_t slot, std::uint64_t epoch);

 private:
  bool change(const Claim& claim, std::uint64_t from_bytes, std::uint64_t to_bytes);
  std::uint64_t owned(const Claim& claim) const;

  layout::Word* words_;
  std::uint64_t limit_bytes_;
};

}  // namespace tensile
