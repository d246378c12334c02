// A workload for tests: a job that allocates at full speed and checks its bytes. Tests kill it at random instructions
// and then check the state that it leaves in the ledger.
#pragma once

#include <cstdint>

#include "ledger.hpp"

namespace tensile {

// Take and give back bytes of the account and of the arena at random, fill all memory taken with a mark of this job,
// and check the mark before the memory is freed. Returns only if a byte has changed.
void churn(Ledger ledger, const Claim& claim, std::uint64_t seed);

}  // namespace tensile
