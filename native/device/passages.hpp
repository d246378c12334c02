// How far each member of a round has come, and waiting for a member to come further.
//
// A job's progress is one word: the number of the round, and the number of boundaries between operators that the job
// has passed in it. The word is only ever raised, so a late write of a process that has died, or of an earlier round,
// lowers nothing. Raising it is a release and waiting for it an acquire: whoever waited sees all regions that the
// member gave back before.
#pragma once

#include <chrono>
#include <cstdint>

#include "ledger.hpp"
#include "ledger_layout.hpp"

namespace tensile {

class Passages {
 public:
  explicit Passages(Ledger ledger) : ledger_(std::move(ledger)) {}

  // Raise the progress of a slot, and wake those who wait for it.
  void advance(std::uint32_t slot, const layout::Progress& to);

  // Wait until a slot has come this far, at most for `limit`. True if it has, or if the round is over. Spins `spins`
  // times before it sleeps, which is worth while only if there are more cores than members.
  bool wait_for(std::uint32_t slot, const layout::Progress& until, std::chrono::nanoseconds limit,
                std::uint32_t spins = 0) const;

  layout::Progress progress(std::uint32_t slot) const;

  // End this round and all earlier ones: nobody waits in them any more.
  void end(std::uint64_t round);
  bool is_over(std::uint64_t round) const { return ledger_.words().header.last_over.load() >= round; }

 private:
  layout::Word& word(std::uint32_t slot) const;

  Ledger ledger_;
};

}  // namespace tensile
