#include "passages.hpp"

#include "fault.hpp"
#include "futex.hpp"

namespace tensile {
namespace {

// Raise a word that several processes may raise. Returns whether it was lower.
bool raise(layout::Word& word, std::uint64_t value) {
  std::uint64_t current = word.load(std::memory_order_relaxed);
  while (current < value) {
    if (word.compare_exchange_weak(current, value, std::memory_order_release, std::memory_order_relaxed)) return true;
  }
  return false;
}

void check(const layout::Progress& progress) {
  if (progress.round == 0 || progress.round > layout::max_round || progress.boundary > layout::max_boundary) {
    throw Fault(Fault::Kind::invariant,
                text("round ", progress.round, " has no boundary ", progress.boundary, ": rounds are 1 to ",
                     layout::max_round, ", boundaries at most ", layout::max_boundary));
  }
}

}  // namespace

void Passages::advance(std::uint32_t slot, const layout::Progress& to) {
  check(to);
  if (raise(word(slot), to.packed())) wake_all(word(slot));
}

bool Passages::wait_for(std::uint32_t slot, const layout::Progress& until, std::chrono::nanoseconds limit,
                        std::uint32_t spins) const {
  check(until);
  const layout::Word& passed = word(slot);
  for (std::uint32_t spin = 0; spin < spins; ++spin) {
    if (passed.load(std::memory_order_acquire) >= until.packed()) return true;
  }
  const auto stop = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const std::uint64_t seen = passed.load(std::memory_order_acquire);
    if (seen >= until.packed() || is_over(until.round)) return true;
    const auto left = stop - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    wait_for_change(passed, seen, left);
  }
}

layout::Progress Passages::progress(std::uint32_t slot) const {
  return layout::Progress::unpacked(word(slot).load(std::memory_order_acquire));
}

void Passages::end(std::uint64_t round) {
  check({round, 0});
  raise(ledger_.words().header.last_over, round);
  for (const layout::Passage& passage : ledger_.words().passages) wake_all(passage.passed);
  wake_all(ledger_.words().pool.returned);
}

layout::Word& Passages::word(std::uint32_t slot) const {
  if (slot >= layout::slot_count) {
    throw Fault(Fault::Kind::invariant, text("slot ", slot, ": the device has slots 0 to ", layout::slot_count - 1));
  }
  return ledger_.words().passages[slot].passed;
}

}  // namespace tensile
