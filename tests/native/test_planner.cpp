// Tests of the planner's search on random steps. The load of each layout is compared with an independent count over
// its order and moves.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "random_step.hpp"
#include "search.hpp"

using namespace tensile::planner;

namespace {

bool alike(const Layout& a, const Layout& b) {
  const auto times = [](const Move& move) {
    return std::tuple(move.gap, move.after, move.need, move.free, move.back, move.copies, move.out_start_ns,
                      move.in_start_ns);
  };
  return a.order().op_at == b.order().op_at && a.load_bytes == b.load_bytes && a.boundary_ns == b.boundary_ns &&
         a.begin_ns == b.begin_ns && a.end_ns == b.end_ns && a.iteration_ns == b.iteration_ns &&
         a.stall_ns == b.stall_ns && a.moves.size() == b.moves.size() &&
         std::equal(a.moves.begin(), a.moves.end(), b.moves.begin(),
                    [&](const Move& move, const Move& other) { return times(move) == times(other); });
}

}  // namespace

TEST(the_load_of_a_chosen_layout_is_that_of_its_order_and_moves) {
  for (std::uint32_t seed = 1; seed <= check::draws(150); ++seed) {
    RandomNumbers random(seed);
    const StepArrays arrays = random_step(random);
    const Step step(arrays);
    Search search(arrays);
    check_layout(step, search.layout());
    const Bytes top = search.layout().peak_bytes();
    const Bytes limit = random.below(static_cast<Index>(top) + 1);
    GreedyOptions options;
    options.drops = random.below(3) != 0;
    options.together = 1 + random.below(6);
    const bool reached = search.lower(limit, options, 200);
    CHECK(!reached || search.layout().peak_bytes() <= limit);
    check_layout(step, search.layout());
    const Bytes bound = std::max(limit, search.layout().peak_bytes());
    const Ns before = search.layout().iteration_ns;
    search.prune(bound, 30);
    search.improve(bound, options, 40, seed);
    CHECK(search.layout().peak_bytes() <= bound && search.layout().iteration_ns <= before);
    check_layout(step, search.layout());
    search.exhaust();
    check_layout(step, search.layout());
  }
}

TEST(a_layout_stays_within_its_memory_and_is_faster_after_an_exchange) {
  int filled = 0;
  for (std::uint32_t seed = 1; seed <= check::draws(150); ++seed) {
    RandomNumbers random(seed);
    const StepArrays arrays = random_step(random);
    const Step step(arrays);
    Search search(arrays);
    GreedyOptions options;
    options.drops = random.below(3) != 0;
    search.lower(random.below(static_cast<Index>(search.layout().peak_bytes()) + 1), options, 200);
    const Bytes peak = search.layout().peak_bytes();
    const Bytes room = std::max<Bytes>(0, peak - 5 + random.below(30));
    const bool fits = search.fill(room);
    CHECK(fits || room < peak);
    CHECK(search.layout().peak_bytes() <= (fits ? room : peak));
    check_layout(step, search.layout());
    if (!fits) continue;
    ++filled;
    const Ns before = search.layout().iteration_ns;
    const Choices was = search.choices();
    search.exchange(options.drops, 60);
    CHECK(search.layout().peak_bytes() <= room && search.layout().iteration_ns <= before);
    CHECK(options.drops || search.choices().choice == was.choice || search.layout().length() == step.operators());
    check_layout(step, search.layout());
    search.choose(search.choices());
    CHECK(search.layout().peak_bytes() <= room);
  }
  CHECK(filled > static_cast<int>(check::draws(100)));
}

// Layouts reuse parts of earlier layouts, which must not change the result.
TEST(a_searched_layout_equals_a_layout_made_from_scratch) {
  for (std::uint32_t seed = 1; seed <= check::draws(150); ++seed) {
    RandomNumbers random(seed);
    const StepArrays arrays = random_step(random);
    Search search(arrays);
    GreedyOptions options;
    options.together = 1 + random.below(6);
    search.lower(random.below(static_cast<Index>(search.layout().peak_bytes()) + 1), options, 200);
    search.improve(search.layout().peak_bytes(), options, 40, seed);
    search.choose(search.choices());  // the search itself may end with a layout of fewer timing passes
    Search fresh(arrays);
    fresh.choose(search.choices());
    CHECK(alike(search.layout(), fresh.layout()));
    search.prune(search.layout().peak_bytes(), 30);
    search.choose(search.choices());
    fresh.choose(search.choices());
    CHECK(alike(search.layout(), fresh.layout()));
  }
}

TEST(impossible_choices_are_refused_and_change_nothing) {
  RandomNumbers random(3);
  StepArrays arrays = random_step(random);
  arrays.repeatable.assign(arrays.repeatable.size(), 0);
  Search search(arrays);
  search.exhaust();
  const std::vector<Bytes> load = search.layout().load_bytes;
  const Choices good = search.choices();
  CHECK(!good.choice.empty());
  Choices unrepeatable = good;
  unrepeatable.choice[0] = Choice::drop;
  Choices outside = good;
  outside.cover[0].hi += 1;
  Choices short_of_one = good;
  short_of_one.choice.pop_back();
  for (const Choices& bad : {unrepeatable, outside, short_of_one}) {
    bool refused = false;
    try {
      search.choose(bad);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused && search.layout().load_bytes == load && search.choices().choice == good.choice);
  }
}

TEST(a_plan_is_read_back_and_other_arrays_are_refused_and_change_nothing) {
  for (std::uint32_t seed = 1; seed <= check::draws(300); ++seed) {
    RandomNumbers random(seed);
    const StepArrays arrays = random_step(random);
    Search search(arrays);
    search.lower(random.below(static_cast<Index>(search.layout().peak_bytes()) + 1), {}, 200);
    if (seed % 2 == 0) search.fill(search.layout().peak_bytes() + random.below(20));
    const Index count = search.layout().length();
    std::vector<Index> order = search.layout().order().op_at;
    std::vector<Move> moves = search.layout().moves;
    for (Move& move : moves) {
      move = {none, move.tensor, move.after, move.need % count, move.free % count, move.back % count,
              0,    none,        move.copies};
    }
    Search other(arrays);
    const auto standing = other.adopt(order, moves);
    CHECK(standing && standing->peak_bytes == search.layout().peak_bytes());
    CHECK(standing->iteration_ns == search.layout().iteration_ns);
    CHECK(other.layout().order().op_at == order);
    CHECK(other.layout().moves.size() == moves.size());
    const std::vector<Bytes> load = other.layout().load_bytes;
    for (int spoilt = 0; spoilt < 20; ++spoilt) {
      std::vector<Index> wrong_order = order;
      std::vector<Move> wrong = moves;
      const auto any = [&] { return random.below(count + 6) - 3; };
      if (random.below(3) == 0) wrong_order[at(random.below(count))] = any();
      if (random.below(3) == 0) wrong.push_back({none, any(), any(), any(), any(), any(), 0, none, true});
      for (Move& move : wrong)
        if (random.below(3) == 0) (random.below(2) == 0 ? move.after : move.need) = any();
      if (!other.adopt(wrong_order, wrong)) CHECK(other.layout().load_bytes == load);
      check_layout(Step(arrays), other.layout());
      other.adopt(order, moves);
      CHECK(other.layout().load_bytes == load);
    }
    other.uncover();
    check_layout(Step(arrays), other.layout());
  }
}

TEST(equal_searches_make_equal_choices) {
  RandomNumbers random(7);
  const StepArrays arrays = random_step(random);
  std::vector<Index> orders[2];
  for (auto& order : orders) {
    Search search(arrays);
    search.lower(search.layout().peak_bytes() / 2, {}, 100);
    search.improve(search.layout().peak_bytes(), {}, 100, 3);
    order = search.layout().order().op_at;
  }
  CHECK(orders[0] == orders[1]);
}

TEST(inconsistent_arrays_are_refused) {
  StepArrays arrays;
  bool refused = false;
  try {
    const Step step(arrays);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}
