#include "futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <ctime>

namespace tensile {
namespace {

// A futex has 32 bits. On a little-endian machine the low half of a word lies at the word's address.
static_assert(std::endian::native == std::endian::little);

// The futex is not private to this process: other processes map the word as well.
long futex(const layout::Word& word, int operation, std::uint32_t value, const timespec* limit) {
  return ::syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

}  // namespace

void wait_for_change(const layout::Word& word, std::uint64_t seen, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec timeout{static_cast<std::time_t>(seconds.count()),
                         static_cast<long>((limit - seconds).count())};  // relative
  futex(word, FUTEX_WAIT, static_cast<std::uint32_t>(seen), &timeout);
}

void wake_all(const layout::Word& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

}  // namespace tensile
