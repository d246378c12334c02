// Who owns which region of the device's memory: words that change by compare-and-swap alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "free_ranges.hpp"
#include "ledger_layout.hpp"

namespace tensile {

struct Claim {
  std::uint32_t slot;
  std::uint64_t epoch;
};

// The words of a ledger, which outlives this. A range here counts regions, not bytes.
class Regions {
 public:
  // Gives the bytes of neighbouring regions back to the system.
  using Wipe = std::function<void(Range)>;

  Regions(layout::Word* words, std::uint64_t count) : words_(words), count_(count) {}

  std::uint64_t count() const noexcept { return count_; }
  layout::Owner owner(std::uint64_t region) const { return layout::Owner::unpacked(words_[region].load()); }
  bool is_of(const Claim& claim, std::uint64_t region) const;
  std::uint64_t free_count() const;

  // Those of a claim, and among them those that the system has set memory aside for.
  std::uint64_t held_count(const Claim& claim) const;
  std::uint64_t backed_count(const Claim& claim) const;

  // --- the controller's: one thread at a time (two that hand out at once may both be refused) ---

  // So many more, neighbours of each other and of what the claim has where that can be, and otherwise in the longest
  // runs there are. False, and nothing has changed, where too few are free.
  bool hand_out(const Claim& claim, std::uint64_t wanted);

  // At most so many that hold nothing, the highest first, since an arena fills from the lowest. How many came back.
  std::uint64_t take_back(const Claim& claim, std::uint64_t wanted, const Wipe& wipe);

  // Whatever any epoch of the slot has. No process that maps it may be left.
  void take_all(std::uint32_t slot, const Wipe& wipe);

  // --- the owner's ---

  // Before something is placed in the region: as it is from now on, or nothing where it is no longer the claim's.
  std::optional<layout::Owner> engage(const Claim& claim, std::uint64_t region);

  // The system has set memory aside for a region that is engaged.
  void mark_backed(const Claim& claim, std::uint64_t region);

  // After the last use of the last thing in it.
  void disengage(const Claim& claim, std::uint64_t region);

  // An empty region's memory is given up by the process that made it.
  void mark_unbacked(const Claim& claim, std::uint64_t region);

 private:
  template <typename Condition>
  std::uint64_t count_if(Condition condition) const;
  bool replace(std::uint64_t region, const layout::Owner& expected, const layout::Owner& desired);
  std::vector<Range> free_runs() const;
  std::optional<Range> best_run(const Claim& claim, std::uint64_t wanted) const;
  void free(const std::vector<Range>& wiping, const Wipe& wipe);

  layout::Word* words_;
  std::uint64_t count_;
};

}  // namespace tensile
