// Tests of sweeps along random steps, and of the calendar of the lanes' free time that sweeps use.
#include <algorithm>
#include <vector>

#include "check.hpp"
#include "lane_calendar.hpp"
#include "random_step.hpp"
#include "search.hpp"

using namespace tensile::planner;

namespace {

// The reference for a lane calendar: counts the free time nanosecond by nanosecond.
struct Counted {
  std::vector<Ns> left;

  Ns at(Ns time) const {
    const auto period = static_cast<Ns>(left.size());
    return left[static_cast<std::size_t>(((time % period) + period) % period)];
  }
  Ns free(Ns from, Ns to) const {
    Ns sum = 0;
    for (Ns time = from; time < to; ++time) sum += at(time);
    return sum;
  }
};

// Return the lowest peak that the chosen swaps can reach: every swapped tensor is away between its accesses.
Bytes least_peak(const Search& search) {
  const std::vector<Bytes> load = search.layout().least_load();
  return *std::max_element(load.begin(), load.end());
}

}  // namespace

TEST(the_free_time_of_a_lane_is_the_unreserved_time) {
  for (std::uint32_t seed = 1; seed <= check::draws(60); ++seed) {
    RandomNumbers random(seed);
    const Ns period = 20 + random.below(60);
    LaneCalendar lane(period, static_cast<Index>(period));
    Counted counted{std::vector<Ns>(static_cast<std::size_t>(period), 1)};
    for (int copy = 0; copy < 8; ++copy) {
      const Ns time = random.below(static_cast<Index>(3 * period)) - period;
      const Ns duration = random.below(static_cast<Index>(period / 4));
      const bool forward = random.below(2) == 0;
      Ns left_ns = std::min(duration, counted.free(0, period));
      for (Ns step = 0; left_ns > 0; ++step) {
        const Ns where = forward ? time + step : time - 1 - step;
        Ns& free_ns = counted.left[static_cast<std::size_t>(((where % period) + period) % period)];
        left_ns -= free_ns;
        free_ns = 0;
      }
      forward ? lane.take_from(time, duration) : lane.take_until(time, duration);
      for (Ns from = -period; from < period; from += 7)
        for (Ns to = from; to < from + period; to += 5) CHECK(lane.free(from, to) == counted.free(from, to));
    }
    const Ns sought_ns = 1 + random.below(static_cast<Index>(period / 3));
    if (counted.free(0, period) < sought_ns) continue;
    const Ns done = lane.earliest(3, sought_ns);
    CHECK(counted.free(3, done) == sought_ns && counted.free(3, done - 1) < sought_ns);
    const Ns start = lane.latest(3, sought_ns);
    CHECK(counted.free(start, 3) <= sought_ns && counted.free(start - 1, 3) >= sought_ns);
  }
}

TEST(a_full_lane_has_free_time_only_where_the_axis_waits) {
  LaneCalendar lane(100, 10);
  lane.take_from(30, 500);
  CHECK(lane.free(0, 100) == 0 && lane.earliest(0, 1) == LaneCalendar::never);
  CHECK(lane.latest(50, 1) == -LaneCalendar::never);
  lane.stretch(130, 40);
  CHECK(lane.free(0, 100) == 40 && lane.free(0, 30) == 0 && lane.free(40, 100) == 0);
}

TEST(a_sweep_stays_within_its_limit_and_gives_a_valid_plan) {
  int swept = 0;
  for (std::uint32_t seed = 1; seed <= check::draws(300); ++seed) {
    RandomNumbers random(seed);
    const StepArrays arrays = random_step(random);
    const Step step(arrays);
    Search search(arrays);
    const Bytes limit = random.below(static_cast<Index>(search.layout().peak_bytes()) + 1);
    const bool drops = random.below(3) != 0;
    const bool reached = search.sweep(limit, Weights{drops, random.below(10) / 10.0, 1.0}, 6);
    check_layout(step, search.layout());
    CHECK(!reached || search.layout().peak_bytes() <= limit);
    if (!reached) continue;
    ++swept;
    const Ns before = search.layout().iteration_ns;
    search.sweep_again(drops, 60, seed);
    check_layout(step, search.layout());
    CHECK(search.layout().peak_bytes() <= limit && search.layout().iteration_ns <= before);
    CHECK(drops || search.layout().length() == step.operators());
  }
  CHECK(swept > static_cast<int>(check::draws(80)));
}

TEST(a_sweep_with_swaps_alone_reaches_the_limit_whenever_swapping_every_tensor_does) {
  int least = 0;
  for (std::uint32_t seed = 1; seed <= check::draws(300); ++seed) {
    RandomNumbers random(seed);
    const StepArrays arrays = random_step(random);
    Search search(arrays);
    search.exhaust();
    const Bytes limit = least_peak(search);
    CHECK(search.sweep(limit, Weights{false, 0.0, 1.0}, 16));
    CHECK(search.layout().peak_bytes() <= limit);
    search.clear();
    least += search.layout().peak_bytes() > limit;
  }
  CHECK(least > static_cast<int>(check::draws(100)));
}

TEST(equal_sweeps_make_equal_choices_and_none_within_the_limit) {
  RandomNumbers random(11);
  const StepArrays arrays = random_step(random);
  Search search(arrays);
  Search other(arrays);
  const Bytes top = search.layout().peak_bytes();
  CHECK(search.sweep(top, {}, 4) && search.layout().moves.empty() &&
        search.layout().length() == search.step().operators());
  CHECK(search.sweep(top * 2 / 3, {}, 4) == other.sweep(top * 2 / 3, {}, 4));
  CHECK(search.choices().choice == other.choices().choice);
}

namespace {

// Return a step with a forward and a backward pass over this many layers. The next layer and the layer's own backward
// pass read the output of each layer.
StepArrays deep_step(Index layers) {
  StepArrays step;
  step.offset.push_back(0);
  const auto run = [&](std::vector<Access> accesses, bool repeatable) {
    step.access.insert(step.access.end(), accesses.begin(), accesses.end());
    step.offset.push_back(static_cast<Index>(step.access.size()));
    step.latency_ns.push_back(100);
    step.workspace_bytes.push_back(0);
    step.upload.push_back(0);
    step.repeatable.push_back(repeatable ? 1 : 0);
  };
  for (Index layer = 0; layer < layers; ++layer) {
    step.size_bytes.push_back(10 + layer % 7);
    step.persistent.push_back(0);
    step.out_ns.push_back(150);
    step.in_ns.push_back(150);
    layer == 0 ? run({{0, true}}, true) : run({{layer - 1, false}, {layer, true}}, true);
  }
  for (Index layer = layers; layer-- > 0;) run({{layer, false}}, false);
  return step;
}

}  // namespace

TEST(a_sweep_evaluates_a_bounded_number_of_candidates_for_each_operator) {
  Index before = 0;
  for (const Index layers : {500, 1000, 2000, 4000}) {
    Search search(deep_step(layers));
    const Bytes limit = search.layout().peak_bytes() / 2;
    Choices choices = search.choices();
    Sweep sweep(search.step(), search.layout(), search.layout().load_bytes, choices, limit, {true, 0.1, 1.0});
    CHECK(sweep.run() > 0);
    CHECK(sweep.weighed() <= 2 * layers * 28);  // positions, times the most that is weighed at one position
    CHECK(before == 0 || sweep.weighed() <= 3 * before);
    before = sweep.weighed();
    const Index layouts = search.layouts();
    CHECK(search.sweep(limit, {true, 0.1, 1.0}, 4) && search.layouts() <= layouts + 4);
  }
}
