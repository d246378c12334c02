// Waiting between processes for a word of the shared ledger to change.
#pragma once

#include <chrono>
#include <cstdint>

#include "ledger_layout.hpp"

namespace tensile {

// Sleep until the low half of this word differs from that of `seen`, at most for `limit`. May return early.
void wait_for_change(const layout::Word& word, std::uint64_t seen, std::chrono::nanoseconds limit);

// Wake every process that waits for this word.
void wake_all(const layout::Word& word);

}  // namespace tensile
