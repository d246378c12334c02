#include "search.hpp"

#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

namespace tensile::placement {
namespace {

constexpr Bytes unlimited = std::numeric_limits<Bytes>::max();
// The shortest restart has this many steps for each block, and at least `least_steps`. Measured on 15 permutations of
// each of MiniMalloc's hard instances A to E, as means of thousand steps until all blocks are placed: 120, 19, 4, 44,
// 219 with 6,000 steps; 60, 18, 2, 43, 117 with 3,000; 34, 28, 2, 26, 53 with 1,500; 31, 16, 2, 12, 77 with 500.
// The intervals of seven networks, with other sizes, gave 211 instances for `place`, of which 35 are searched. With
// 6,000 steps 17 of these reach the bound, with 1,500 21, with 500 and with the present constants 30, and none is
// higher than with 6,000. But 500 steps cannot place a thousand blocks, hence the second constant. With 4 in its
// place 28 reach the bound.
constexpr std::int64_t least_steps = 500;
constexpr std::int64_t steps_of_block = 2;
// The lists below are medians of five to nine seeds, with restarts of 1,500 steps and more. With this factor and this
// shuffle: 39, 12, 0, 14, 45.
//
// The factor from one failure to the next: recent failures weigh more. With 1: 60, 31, 0, 27, 103; 1.0025: 56, 5, 0,
// 11, 44.
constexpr double weight_growth = 1.0005;
constexpr double weight_most = 1e50;  // weights are scaled down here, before they overflow
// The relative random change of a block's preference in a restart. With 0.5: 25, 10, 0, 33, 52. Without it, means
// over permutations as above: 43, 8, 1, 25, 100; of the 211 placements 202 reach the bound, and two are higher than
// before.
constexpr double shuffle = 0.2;

// A set of levels of the search tree: the placements that a fact follows from. Levels are below 64 * words.
template <std::size_t words>
class ReasonsOf {
 public:
  void add(Index level) { words_[at(level) / 64] |= bit(level); }
  void remove(Index level) { words_[at(level) / 64] &= ~bit(level); }
  bool has(Index level) const { return (words_[at(level) / 64] & bit(level)) != 0; }
  void clear() { words_.fill(0); }
  void add(const ReasonsOf& other) {
    for (std::size_t k = 0; k < words; ++k) words_[k] |= other.words_[k];
  }

 private:
  static std::uint64_t bit(Index level) { return std::uint64_t{1} << (at(level) % 64); }

  std::array<std::uint64_t, words> words_{};
};

std::uint64_t mixed(std::uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Return an element of the sequence 1 1 2 1 1 2 4 ..., whose expected time is within a logarithmic factor of the best
// schedule of restarts (Luby, Sinclair and Zuckerman 1993).
std::int64_t luby(std::int64_t turn) {
  for (;;) {
    int bits = 1;
    while ((std::int64_t{1} << bits) - 1 < turn) ++bits;
    if ((std::int64_t{1} << bits) - 1 == turn) return std::int64_t{1} << (bits - 1);
    turn -= (std::int64_t{1} << (bits - 1)) - 1;
  }
}

// Renumbers the moments at which a block starts or stops as 0, 1, ...: the set of live blocks is constant in between.
class Sections {
 public:
  Sections(std::vector<Block>& blocks, Index cycle) {
    std::vector<Index> starts;
    for (const Block& block : blocks) {
      starts.push_back(block.first);
      starts.push_back(block.stop % cycle);
    }
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    const auto number = [&](Index moment) {
      return static_cast<Index>(std::lower_bound(starts.begin(), starts.end(), moment) - starts.begin());
    };
    count = static_cast<Index>(starts.size());
    for (Block& block : blocks) {
      const Index first = number(block.first);
      const Index stop = number(block.stop % cycle);
      block.first = first;
      block.stop = stop > first ? stop : stop + count;
    }
  }

  Index count = 0;
};

// The search over at most 64 * words blocks. The time of a step grows with `words`.
template <std::size_t words>
class Searcher {
  using Reasons = ReasonsOf<words>;
  using Blocks = std::vector<Index>;  // open blocks

  // The least offset of an open block, as it follows from the partial placement.
  struct Least {
    Bytes offset = 0;   // the least offset
    Bytes support = 0;  // the top of the placed blocks that the block meets, 0 for none
    Reasons why;        // the reasons of `offset`
    Reasons below;      // the reasons of the placed blocks that the block meets, and of their offsets
  };

 public:
  Searcher(std::vector<Block> blocks, Index cycle, Bytes capacity)
      : blocks_(std::move(blocks)), sections_(blocks_, cycle), capacity_(capacity) {
    const std::size_t count = blocks_.size();
    meets_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < count; ++k) {
        if (i != k && meet(blocks_[i], blocks_[k], sections_.count)) meets_[i].push_back(static_cast<Index>(k));
      }
    }
    weight_.assign(count, 1.0);
    preference_.assign(count, 1.0);
    height_.resize(at(sections_.count));
    lowest_top_.resize(count);
    offsets_.resize(count);
    measure_load();
  }

  Found run(std::int64_t steps) {
    const std::int64_t shortest = std::max(least_steps, steps_of_block * static_cast<std::int64_t>(blocks_.size()));
    for (std::int64_t turn = 0; steps > 0; ++turn) {
      set_preferences(turn);
      const std::int64_t most = std::min(steps, shortest * luby(turn / kinds + 1));
      left_ = most;
      const Verdict verdict = place(start(), 0);
      if (verdict == Verdict::placed) return {verdict, offsets_};
      if (verdict == Verdict::impossible) return {verdict, {}};
      steps -= most;
    }
    return {Verdict::undecided, {}};
  }

 private:
  static constexpr std::int64_t kinds = 5;  // the criteria of set_preferences

  void measure_load() {
    std::vector<Bytes> load(at(sections_.count));
    for (const Block& block : blocks_) {
      for (Index t = block.first; t < block.stop; ++t) load[at(wrapped(t, sections_.count))] += block.size;
    }
    for (const Block& block : blocks_) {
      Bytes most = 0;
      for (Index t = block.first; t < block.stop; ++t) most = std::max(most, load[at(wrapped(t, sections_.count))]);
      max_load_.push_back(static_cast<double>(most));
    }
  }

  // Set the preferences that decide between blocks with equal least offsets. Successive restarts use different
  // criteria in turn: the load during the life of a block, its length, load times the root of the area, its size, its
  // area.
  void set_preferences(std::int64_t turn) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const double size = static_cast<double>(blocks_[i].size);
      const double length = static_cast<double>(blocks_[i].stop - blocks_[i].first);
      const double bases[kinds] = {max_load_[i], length, max_load_[i] * std::sqrt(size * length), size,
                                   size * length};
      preference_[i] = bases[turn % kinds] * (1 + shuffle * (2 * random() - 1));
    }
  }

  double random() {
    seed_ += 0x9e3779b97f4a7c15ULL;
    return static_cast<double>(mixed(seed_) >> 11) * 0x1p-53;
  }

  Blocks start() {
    const std::size_t count = blocks_.size();
    least_.assign(count, Least{});
    is_open_.assign(count, 1);
    changed_.clear();
    Blocks open(count);
    std::iota(open.begin(), open.end(), 0);
    return open;
  }

  // Save a block's least offset before it changes.
  void save(Index block) { changed_.emplace_back(block, least_[at(block)]); }

  // Undo all changes after the first `saved_count`.
  void take_back(std::size_t saved_count) {
    for (; changed_.size() > saved_count; changed_.pop_back()) {
      least_[at(changed_.back().first)] = changed_.back().second;
    }
  }

  // Place the open blocks. If that is impossible, `failure_` holds the levels below this one that are the reasons.
  Verdict place(const Blocks& open, Index level) {
    for (;;) {
      if (left_-- <= 0) return Verdict::undecided;
      if (open.empty()) return Verdict::placed;
      if (!settle(open)) return left_ <= 0 ? Verdict::undecided : Verdict::impossible;
      if (!bounded(open)) return Verdict::impossible;
      const Index block = chosen(open);
      const bool free = lowest_top_[at(block)] == unlimited;  // it meets no open block
      const std::size_t saved_count = changed_.size();
      const Verdict verdict = place_with(open, block, level, free);
      if (verdict == Verdict::placed) offsets_[at(block)] = least_[at(block)].offset;
      if (verdict != Verdict::impossible) return verdict;
      take_back(saved_count);
      is_open_[at(block)] = 1;
      if (free || !failure_.has(level)) return verdict;  // the branch fails wherever this block lies
      failure_.remove(level);
      explain(block);
      if (!raise(block, find_lowest_top(block))) return Verdict::impossible;
    }
  }

  // Place `block` at its least offset, then the other open blocks. A placement without an alternative (`free`) does
  // not count as a level: it follows from others.
  Verdict place_with(const Blocks& open, Index block, Index level, bool free) {
    is_open_[at(block)] = 0;
    Reasons because = least_[at(block)].why;
    because.add(least_[at(block)].below);
    if (!free) because.add(level);
    const Bytes top = least_[at(block)].offset + blocks_[at(block)].size;
    for (const Index other : meets_[at(block)]) {
      if (!is_open_[at(other)]) continue;
      save(other);
      Least& next = least_[at(other)];
      next.below.add(because);
      next.support = std::max(next.support, top);
      if (next.offset >= top) continue;
      failure_ = next.why;  // no open block fits under the chosen block, so `other` lies on top of it
      failure_.add(because);
      if (!raise(other, top)) return Verdict::impossible;
    }
    Blocks rest;
    rest.reserve(open.size() - 1);
    std::copy_if(open.begin(), open.end(), std::back_inserter(rest), [&](Index other) { return other != block; });
    return place(rest, free ? level : level + 1);
  }

  // Set a block's least offset, whose reasons are `failure_`. If the offset is too high, the block gains weight and
  // the result is false.
  bool raise(Index block, Bytes least) {
    save(block);
    least_[at(block)].offset = least;
    least_[at(block)].why = failure_;
    if (least + blocks_[at(block)].size <= capacity_) return true;
    weight_[at(block)] += weight_increment_;
    return false;
  }

  // Return the lowest top that an open block which meets this block can have; `unlimited` if there is none.
  Bytes find_lowest_top(Index block) const {
    Bytes lowest_top = unlimited;
    for (const Index other : meets_[at(block)]) {
      if (is_open_[at(other)]) lowest_top = std::min(lowest_top, least_[at(other)].offset + blocks_[at(other)].size);
    }
    return lowest_top;
  }

  // Add to `failure_` the reasons why the block, which cannot lie at its least offset, must lie on an open block.
  void explain(Index block) {
    failure_.add(least_[at(block)].why);
    failure_.add(least_[at(block)].below);
    for (const Index other : meets_[at(block)]) {
      if (is_open_[at(other)]) failure_.add(least_[at(other)].why);
    }
  }

  // Raise each block that rests on no placed block until it may rest on an open block. False if a least offset
  // becomes too high, or if the steps are used up.
  bool settle(const Blocks& open) {
    for (const Index block : open) lowest_top_[at(block)] = find_lowest_top(block);
    for (bool changed = true; changed;) {
      changed = false;
      for (const Index block : open) {
        const std::size_t i = at(block);
        if (least_[i].offset == least_[i].support || least_[i].offset >= lowest_top_[i]) continue;
        failure_.clear();
        explain(block);
        if (lowest_top_[i] == unlimited || !raise(block, lowest_top_[i])) return false;
        for (const Index other : meets_[i]) {
          if (is_open_[at(other)]) lowest_top_[at(other)] = find_lowest_top(other);
        }
        changed = true;
        if (left_-- <= 0) return false;  // raises count as steps: there may be many until the capacity is reached
      }
    }
    return true;
  }

  // Return whether at each moment the open blocks fit above their least offsets (Jackson's bound, search.hpp).
  bool bounded(const Blocks& open) {
    by_least_ = open;
    std::sort(by_least_.begin(), by_least_.end(), [&](Index a, Index b) {
      return std::pair(least_[at(a)].offset, a) < std::pair(least_[at(b)].offset, b);
    });
    std::fill(height_.begin(), height_.end(), 0);
    for (const Index block : by_least_) {
      const auto [first, stop, size] = blocks_[at(block)];
      for (Index t = first; t < stop; ++t) {
        Bytes& height = height_[at(wrapped(t, sections_.count))];
        height = std::max(height, least_[at(block)].offset) + size;
        if (height > capacity_) {
          explain_bound(wrapped(t, sections_.count), block);
          return false;
        }
      }
    }
    return true;
  }

  // Set `failure_` after the bound failed at this moment with the block `last`. The reasons are those of the least
  // offsets of all blocks from the last hole below up to `last`, and these blocks gain weight.
  void explain_bound(Index moment, Index last) {
    Bytes height = 0;
    critical_.clear();
    for (const Index block : by_least_) {
      const Block& candidate = blocks_[at(block)];
      if (!meet(candidate, {moment, moment + 1, 0}, sections_.count)) continue;
      if (least_[at(block)].offset >= height) {
        critical_.clear();
        height = least_[at(block)].offset;
      }
      height += candidate.size;
      critical_.push_back(block);
      if (block == last) break;
    }
    failure_.clear();
    for (const Index block : critical_) {
      failure_.add(least_[at(block)].why);
      weight_[at(block)] += weight_increment_;
    }
    weight_increment_ *= weight_growth;
    if (weight_increment_ > weight_most) {
      for (double& weight : weight_) weight /= weight_most;
      weight_increment_ /= weight_most;
    }
  }

  // Choose the next block among those that may lie at their least offset: first a block that cannot lie higher, then
  // the one with the lowest least offset, then the one with the largest weight times preference.
  Index chosen(const Blocks& open) const {
    Index best = none;
    bool best_must = false;
    for (const Index block : open) {
      const std::size_t i = at(block);
      if (least_[i].offset != least_[i].support || least_[i].offset >= lowest_top_[i]) continue;
      if (lowest_top_[i] == unlimited) return block;
      const bool must = lowest_top_[i] + blocks_[i].size > capacity_;
      if (best == none || (must != best_must ? must : before(i, at(best)))) {
        best = block;
        best_must = must;
      }
    }
    return best;
  }

  bool before(std::size_t a, std::size_t b) const {
    if (least_[a].offset != least_[b].offset) return least_[a].offset < least_[b].offset;
    return weight_[a] * preference_[a] > weight_[b] * preference_[b];
  }

  std::vector<Block> blocks_;
  Sections sections_;
  Bytes capacity_;
  std::vector<std::vector<Index>> meets_;
  std::vector<Least> least_;
  std::vector<std::uint8_t> is_open_;
  std::vector<std::pair<Index, Least>> changed_;  // saved least offsets, the latest change last
  std::vector<double> max_load_;                  // by block: the highest load during its life
  std::vector<double> preference_;
  std::vector<double> weight_;
  double weight_increment_ = 1.0;
  std::uint64_t seed_ = 1;
  std::int64_t left_ = 0;
  Reasons failure_;
  std::vector<Bytes> height_;
  std::vector<Bytes> lowest_top_;
  std::vector<Index> by_least_;
  std::vector<Index> critical_;
  std::vector<Bytes> offsets_;
};

}  // namespace

Found search(const std::vector<Block>& blocks, Index cycle, Bytes capacity, std::int64_t steps) {
  if (blocks.empty()) return {Verdict::placed, {}};
  if (blocks.size() <= 256) return Searcher<4>(blocks, cycle, capacity).run(steps);
  if (blocks.size() <= 512) return Searcher<8>(blocks, cycle, capacity).run(steps);
  if (blocks.size() <= most_searched) return Searcher<most_searched / 64>(blocks, cycle, capacity).run(steps);
  return {Verdict::undecided, {}};
}

}  // namespace tensile::placement
