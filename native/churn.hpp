// A job that allocates at full speed and looks after its bytes: for those who kill it to see what it leaves behind.
#pragma once

#include <cstdint>

#include "ledger.hpp"

namespace tensile {

// Takes and gives back account and memory at random, fills all it has with a mark of its own, and looks at each mark
// once more before it lets go. Returns only where a byte is not as it was left.
void churn(Ledger ledger, const Claim& claim, std::uint64_t seed);

}  // namespace tensile
