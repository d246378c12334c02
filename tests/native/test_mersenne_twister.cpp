// Skipped words leave the generator where drawn ones leave it, by the standard library's generator of the same kind.
#include <random>

#include "check.hpp"
#include "random/mersenne_twister.hpp"

using namespace tensile;

namespace {

constexpr std::uint32_t seed = 7;

TwisterState seeded() {
  TwisterState state{seed, 1, 1, 0, {seed}};
  for (std::uint32_t k = 1; k < TwisterState::words; ++k) {
    const auto before = static_cast<std::uint32_t>(state.block[k - 1]);
    state.block[k] = 1812433253U * (before ^ (before >> 30)) + k;
  }
  return state;
}

std::uint32_t draw(TwisterState& state) {
  skip_words(state, 1);
  auto word = static_cast<std::uint32_t>(state.block[state.next - 1]);
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680U;
  word ^= (word << 15) & 0xefc60000U;
  return word ^ (word >> 18);
}

}  // namespace

TEST(skipped_words_are_those_that_would_have_been_drawn) {
  for (const std::uint64_t first : {0U, 1U, 623U, 624U, 625U}) {
    for (const std::uint64_t second : {0U, 1U, 622U, 623U, 624U, 1248U, 100'000U}) {
      TwisterState state = seeded();
      std::mt19937 expected(seed);
      skip_words(state, first);
      skip_words(state, second);
      expected.discard(first + second);
      for (int k = 0; k < 1300; ++k) CHECK_EQUAL(draw(state), expected());
      CHECK_EQUAL(state.seed, seed);
    }
  }
}
