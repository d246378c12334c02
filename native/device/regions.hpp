// The owners of the regions of the device's memory, one word per region. ledger_layout.hpp explains the states of a
// region and the round, in which jobs take turns with memory. Words change by compare-and-swap, except from `wiping`
// to `free`, which is a plain store: only the controller changes a region in `wiping`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "free_ranges.hpp"
#include "ledger_layout.hpp"

namespace tensile {

// A slot and the epoch of its use.
struct Claim {
  std::uint32_t slot;
  std::uint64_t epoch;
};

// A view of the ledger's words; the ledger must outlive it. A `Range` in this class counts regions, not bytes.
class Regions {
 public:
  // Gives the bytes of neighbouring regions back to the operating system.
  using Wipe = std::function<void(Range)>;

  Regions(layout::Word* words, std::uint64_t count) : words_(words), count_(count) {}

  std::uint64_t count() const noexcept { return count_; }
  layout::Owner owner(std::uint64_t region) const { return layout::Owner::unpacked(words_[region].load()); }
  bool is_of(const Claim& claim, std::uint64_t region) const;
  std::uint64_t free_count() const;
  std::uint64_t absent_count() const;

  // The number of regions that a claim owns, and of those for which the operating system has set memory aside.
  std::uint64_t held_count(const Claim& claim) const;
  std::uint64_t backed_count(const Claim& claim) const;

  // --- for the controller: one thread at a time (of two concurrent hand_out calls, both may fail) ---

  // Give a claim this many more regions. A free run that is long enough is preferred: one adjacent to the claim's own
  // regions, otherwise the shortest. If no run is long enough, the longest runs are used. False if too few regions
  // are free, and then nothing has changed.
  bool hand_out(const Claim& claim, std::uint64_t count);

  // Take back at most this many empty regions, the highest first, because an arena fills from the lowest. Returns the
  // number taken back.
  std::uint64_t take_back(const Claim& claim, std::uint64_t count, const Wipe& wipe);

  // Take back the regions of all epochs of a slot. No process may map them any more.
  void take_all(std::uint32_t slot, const Wipe& wipe);

  // Make at most this many free regions absent, the highest first, and return them. Their memory may then be
  // released.
  std::vector<std::uint64_t> withdraw(std::uint64_t count);

  // Make absent regions free again, after they have got new memory. Raises an invariant fault if a region is not
  // absent.
  void restore(const std::vector<std::uint64_t>& regions);

  // Give at most this many free regions to the round, the lowest first. Returns their number.
  std::uint64_t pool(std::uint64_t count);

  // Take from the round the regions that no member has, and make them free. Returns how many a member still has.
  std::uint64_t unpool(const Wipe& wipe);

  std::uint64_t pooled_count() const;  // of the round, and with no member
  std::uint64_t lent_count(const Claim& claim) const;
  std::uint64_t round_count() const;  // pooled or lent

  // --- for a member of the round ---

  // Take this region of the round, if no other member has it. Returns its new word.
  std::optional<layout::Owner> borrow(const Claim& claim, std::uint64_t region);

  // Give a lent region back to the round, after the last use of its bytes.
  void give_back(const Claim& claim, std::uint64_t region);

  // --- for the owner ---

  // Mark a region as used, before an allocation is placed there. Returns its new word, or nothing if the claim no
  // longer owns the region.
  std::optional<layout::Owner> engage(const Claim& claim, std::uint64_t region);

  // Record that the operating system has set memory aside for an engaged or lent region.
  void mark_backed(const Claim& claim, std::uint64_t region);

  // Mark a region as empty, after the last use of its last allocation.
  void disengage(const Claim& claim, std::uint64_t region);

  // Record that the owner has given up the memory of an empty region, which the owner had mapped.
  void mark_unbacked(const Claim& claim, std::uint64_t region);

 private:
  template <typename Condition>
  std::uint64_t count_if(Condition condition) const;
  bool replace(std::uint64_t region, const layout::Owner& expected, const layout::Owner& desired);
  std::vector<Range> free_runs() const;
  std::optional<Range> best_run(const Claim& claim, std::uint64_t max_count) const;
  void free(const std::vector<Range>& wiping, const Wipe& wipe, const layout::Owner& then = {});

  layout::Word* words_;
  std::uint64_t count_;
};

}  // namespace tensile
