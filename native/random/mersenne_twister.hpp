// Moves a Mersenne Twister on by a number of words without computing the words: M. Matsumoto and T. Nishimura,
// "Mersenne Twister: A 623-Dimensionally Equidistributed Uniform Pseudorandom Number Generator" (TOMACS 1998).
//
// What makes a word of the state (tempering) is left out, and the state is computed in blocks that the compiler
// vectorises. So a skipped word takes a fraction of the time of a drawn one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensile {

// The state as torch writes it (`torch.get_rng_state()` of the processor). More follows that skipping leaves as it
// is.
struct TwisterState {
  static constexpr std::size_t words = 624;

  std::uint64_t seed;
  std::int32_t left;  // words until the next block, that one's first word included
  std::int32_t seeded;
  std::uint64_t next;          // the place of the next word in the block
  std::uint64_t block[words];  // of 32 bits each
};

// Leave the state as if `count` words had been drawn.
void skip_words(TwisterState& state, std::uint64_t count) noexcept;

}  // namespace tensile
