#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "free_ranges.hpp"

using namespace tensile;

TEST(the_smallest_range_that_fits_is_chosen_and_of_equal_ranges_the_lowest) {
  FreeRanges book;
  for (const Range range : {Range{300, 20}, Range{100, 20}, Range{0, 50}, Range{200, 19}}) book.add(range);
  CHECK(book.best_fit(20) == (Range{100, 20}));
  CHECK(book.best_fit(19) == (Range{200, 19}));
  CHECK(book.best_fit(21) == (Range{0, 50}));
  CHECK(!book.best_fit(51));
  CHECK_EQUAL(book.largest_bytes(), 50U);
  CHECK(book.last() == (Range{300, 20}));
}

TEST(neighbours_merge_and_a_part_can_be_taken_out_of_the_middle) {
  FreeRanges book;
  book.add({0, 10});
  book.add({20, 10});
  book.add({10, 10});
  CHECK(book.around({0, 30}) == (Range{0, 30}));
  book.take({5, 10});
  CHECK(book.around({0, 5}) == (Range{0, 5}));
  CHECK(book.around({15, 15}) == (Range{15, 15}));
  CHECK(!book.around({4, 2}));
  CHECK(!book.around({14, 2}));
  CHECK_FAULT(invariant, "2 bytes at offset 4 are not free", book.take({4, 2}));
}

TEST(a_removed_range_may_contain_used_parts) {
  FreeRanges book;
  book.add({0, 10});
  book.add({20, 10});
  book.add({40, 10});
  book.remove({5, 40});
  CHECK(book.around({0, 5}) == (Range{0, 5}));
  CHECK(book.last() == (Range{45, 5}));
  CHECK_EQUAL(book.largest_bytes(), 5U);
  book.remove({100, 10});
  book.remove({0, 100});
  CHECK_EQUAL(book.largest_bytes(), 0U);
}

TEST(any_sequence_of_additions_and_removals_agrees_with_a_byte_map) {
  constexpr std::uint64_t bytes = 200;
  std::minstd_rand random(7);
  FreeRanges book;
  std::vector<bool> free(bytes, false);
  for (int turn = 0; turn < 20'000; ++turn) {
    const std::uint64_t offset = random() % bytes;
    const Range range{offset, 1 + random() % std::min<std::uint64_t>(20, bytes - offset)};
    bool all = true;
    bool none = true;
    for (std::uint64_t byte = range.offset; byte < range.end(); ++byte) (free[byte] ? none : all) = false;
    CHECK_EQUAL(book.around(range).has_value(), all);
    if (!all && !none) continue;
    if (all) {
      book.take(range);
    } else {
      book.add(range);
    }
    for (std::uint64_t byte = range.offset; byte < range.end(); ++byte) free[byte] = none;
    std::uint64_t longest = 0;
    std::uint64_t run = 0;
    for (std::uint64_t byte = 0; byte < bytes; ++byte) longest = std::max(longest, run = free[byte] ? run + 1 : 0);
    CHECK_EQUAL(book.largest_bytes(), longest);
  }
}
