#include "search.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace tensile::placement {
namespace {

constexpr Bytes unlimited = std::numeric_limits<Bytes>::max();
// Of a restart: the hard instances that are known are placed within tens of them.
constexpr std::int64_t first_steps = 6000;
constexpr double weight_growth = 1.0005;  // of failures, so that recent ones count more
constexpr double weight_most = 1e50;
constexpr double shuffle = 0.2;  // how far a restart departs from its kind of order

// A set of levels: the placements that something follows from.
class Reasons {
 public:
  void add(Index level) { words_[at(level) / 64] |= bit(level); }
  void remove(Index level) { words_[at(level) / 64] &= ~bit(level); }
  bool has(Index level) const { return (words_[at(level) / 64] & bit(level)) != 0; }
  void clear() { words_.fill(0); }
  void add(const Reasons& other) {
    for (std::size_t k = 0; k < words_.size(); ++k) words_[k] |= other.words_[k];
  }

 private:
  static std::uint64_t bit(Index level) { return std::uint64_t{1} << (at(level) % 64); }

  std::array<std::uint64_t, most_searched / 64> words_{};
};

std::uint64_t mixed(std::uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// 1 1 2 1 1 2 4 ...: within a constant of the best schedule of restarts (Luby, Sinclair and Zuckerman 1993).
std::int64_t luby(std::int64_t turn) {
  for (;;) {
    int bits = 1;
    while ((std::int64_t{1} << bits) - 1 < turn) ++bits;
    if ((std::int64_t{1} << bits) - 1 == turn) return std::int64_t{1} << (bits - 1);
    turn -= (std::int64_t{1} << (bits - 1)) - 1;
  }
}

// The moments at which something starts, renamed 0, 1, ...: nothing changes in between.
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

// A partial placement and what follows from it.
struct State {
  std::vector<Index> open;
  std::vector<Bytes> least;    // the least offset of every open block
  std::vector<Bytes> support;  // the top of the placed blocks that it meets, 0 for none
  std::vector<Reasons> why;    // what `least` follows from
  std::vector<Reasons> below;  // what the placed blocks that it meets, and their offsets, follow from
  std::vector<std::uint8_t> is_open;
};

class Searcher {
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
    roof_.resize(count);
    offsets_.resize(count);
    measure();
  }

  Found run(std::int64_t steps) {
    for (std::int64_t turn = 0; steps > 0; ++turn) {
      prefer(turn);
      const std::int64_t most = std::min(steps, first_steps * luby(turn / kinds + 1));
      left_ = most;
      const Verdict verdict = place(start(), 0);
      if (verdict == Verdict::placed) return {verdict, offsets_};
      if (verdict == Verdict::impossible) return {verdict, {}};
      steps -= most;
    }
    return {Verdict::undecided, {}};
  }

 private:
  static constexpr std::int64_t kinds = 5;

  void measure() {
    std::vector<Bytes> load(at(sections_.count));
    for (const Block& block : blocks_) {
      for (Index t = block.first; t < block.stop; ++t) load[at(wrapped(t, sections_.count))] += block.size;
    }
    for (const Block& block : blocks_) {
      Bytes most = 0;
      for (Index t = block.first; t < block.stop; ++t) most = std::max(most, load[at(wrapped(t, sections_.count))]);
      crowd_.push_back(static_cast<double>(most));
    }
  }

  // Where offsets are equal: by how crowded a block's time is, how long it lives, its size, its area, in turns.
  void prefer(std::int64_t turn) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const double size = static_cast<double>(blocks_[i].size);
      const double length = static_cast<double>(blocks_[i].stop - blocks_[i].first);
      const double bases[kinds] = {crowd_[i], length, crowd_[i] * std::sqrt(size * length), size, size * length};
      preference_[i] = bases[turn % kinds] * (1 + shuffle * (2 * random() - 1));
    }
  }

  double random() {
    seed_ += 0x9e3779b97f4a7c15ULL;
    return static_cast<double>(mixed(seed_) >> 11) * 0x1p-53;
  }

  State start() const {
    const std::size_t count = blocks_.size();
    State state{std::vector<Index>(count),   std::vector<Bytes>(count),   std::vector<Bytes>(count),
                std::vector<Reasons>(count), std::vector<Reasons>(count), std::vector<std::uint8_t>(count, 1)};
    std::iota(state.open.begin(), state.open.end(), 0);
    return state;
  }

  // Place what is open. Impossible: `failure_` says from which of the levels below this one that follows.
  Verdict place(State state, Index level) {
    for (;;) {
      if (left_-- <= 0) return Verdict::undecided;
      if (state.open.empty()) return Verdict::placed;
      if (!settle(state)) return left_ <= 0 ? Verdict::undecided : Verdict::impossible;
      if (!bounded(state)) return Verdict::impossible;
      const Index block = chosen(state);
      const bool free = roof_[at(block)] == unlimited;  // it meets nothing open: there is no other way to place it
      const Verdict verdict = place_with(state, block, level, free);
      if (verdict == Verdict::placed) offsets_[at(block)] = state.least[at(block)];
      if (verdict != Verdict::impossible) return verdict;
      if (free || !failure_.has(level)) return verdict;  // it fails wherever this block lies
      failure_.remove(level);
      explain(state, block);
      if (!raise(state, block, find_roof(state, block))) return Verdict::impossible;
    }
  }

  // A placement without alternative is no level: it follows from others.
  Verdict place_with(const State& state, Index block, Index level, bool free) {
    State next = state;
    next.open.erase(std::find(next.open.begin(), next.open.end(), block));
    next.is_open[at(block)] = 0;
    Reasons because = state.why[at(block)];
    because.add(state.below[at(block)]);
    if (!free) because.add(level);
    const Bytes top = state.least[at(block)] + blocks_[at(block)].size;
    for (const Index other : meets_[at(block)]) {
      if (!state.is_open[at(other)]) continue;
      next.below[at(other)].add(because);
      next.support[at(other)] = std::max(next.support[at(other)], top);
      if (next.least[at(other)] >= top) continue;
      failure_ = next.why[at(other)];  // no open block fits under the chosen one
      failure_.add(because);
      if (!raise(next, other, top)) return Verdict::impossible;
    }
    return place(std::move(next), free ? level : level + 1);
  }

  // Give the block a new least offset, which follows from `failure_`. False where it is too high.
  bool raise(State& state, Index block, Bytes least) {
    state.least[at(block)] = least;
    state.why[at(block)] = failure_;
    if (least + blocks_[at(block)].size <= capacity_) return true;
    weight_[at(block)] += blame_;
    return false;
  }

  // The lowest top among the open blocks that this one meets.
  Bytes find_roof(const State& state, Index block) const {
    Bytes roof = unlimited;
    for (const Index other : meets_[at(block)]) {
      if (state.is_open[at(other)]) roof = std::min(roof, state.least[at(other)] + blocks_[at(other)].size);
    }
    return roof;
  }

  // Add to `failure_` why the block, which cannot lie at its least offset, has to lie on an open one.
  void explain(const State& state, Index block) {
    failure_.add(state.why[at(block)]);
    failure_.add(state.below[at(block)]);
    for (const Index other : meets_[at(block)]) {
      if (state.is_open[at(other)]) failure_.add(state.why[at(other)]);
    }
  }

  // Raise what rests on nothing placed until it may rest on something open. False where something is too high.
  bool settle(State& state) {
    for (const Index block : state.open) roof_[at(block)] = find_roof(state, block);
    for (bool changed = true; changed;) {
      changed = false;
      for (const Index block : state.open) {
        const std::size_t i = at(block);
        if (state.least[i] == state.support[i] || state.least[i] >= roof_[i]) continue;
        failure_.clear();
        explain(state, block);
        if (roof_[i] == unlimited || !raise(state, block, roof_[i])) return false;
        for (const Index other : meets_[i]) {
          if (state.is_open[at(other)]) roof_[at(other)] = find_roof(state, other);
        }
        changed = true;
        if (left_-- <= 0) return false;  // small steps, and a long way to the capacity
      }
    }
    return true;
  }

  // Whether at each moment the open blocks fit above their least offsets.
  bool bounded(const State& state) {
    by_least_ = state.open;
    std::sort(by_least_.begin(), by_least_.end(),
              [&](Index a, Index b) { return std::pair(state.least[at(a)], a) < std::pair(state.least[at(b)], b); });
    std::fill(height_.begin(), height_.end(), 0);
    for (const Index block : by_least_) {
      const Block& one = blocks_[at(block)];
      for (Index t = one.first; t < one.stop; ++t) {
        Bytes& height = height_[at(wrapped(t, sections_.count))];
        height = std::max(height, state.least[at(block)]) + one.size;
        if (height > capacity_) {
          blame(state, wrapped(t, sections_.count), block);
          return false;
        }
      }
    }
    return true;
  }

  // The bound failed at this moment with this block: since the last hole, every block's least offset is a reason.
  void blame(const State& state, Index moment, Index last) {
    Bytes height = 0;
    critical_.clear();
    for (const Index block : by_least_) {
      const Block& one = blocks_[at(block)];
      if (!meet(one, {moment, moment + 1, 0}, sections_.count)) continue;
      if (state.least[at(block)] >= height) {
        critical_.clear();
        height = state.least[at(block)];
      }
      height += one.size;
      critical_.push_back(block);
      if (block == last) break;
    }
    failure_.clear();
    for (const Index block : critical_) {
      failure_.add(state.why[at(block)]);
      weight_[at(block)] += blame_;
    }
    blame_ *= weight_growth;
    if (blame_ > weight_most) {
      for (double& weight : weight_) weight /= weight_most;
      blame_ /= weight_most;
    }
  }

  // Among the blocks that may lie at their least offset: one that must, else the lowest, else the weightiest.
  Index chosen(const State& state) const {
    Index found = none;
    bool found_must = false;
    for (const Index block : state.open) {
      const std::size_t i = at(block);
      if (state.least[i] != state.support[i] || state.least[i] >= roof_[i]) continue;
      if (roof_[i] == unlimited) return block;
      const bool must = roof_[i] + blocks_[i].size > capacity_;
      if (found == none || (must != found_must ? must : before(state, i, at(found)))) {
        found = block;
        found_must = must;
      }
    }
    return found;
  }

  bool before(const State& state, std::size_t a, std::size_t b) const {
    if (state.least[a] != state.least[b]) return state.least[a] < state.least[b];
    return weight_[a] * preference_[a] > weight_[b] * preference_[b];
  }

  std::vector<Block> blocks_;
  Sections sections_;
  Bytes capacity_;
  std::vector<std::vector<Index>> meets_;
  std::vector<double> crowd_;  // the highest load during the block's life
  std::vector<double> preference_;
  std::vector<double> weight_;
  double blame_ = 1.0;
  std::uint64_t seed_ = 1;
  std::int64_t left_ = 0;
  Reasons failure_;
  std::vector<Bytes> height_;
  std::vector<Bytes> roof_;
  std::vector<Index> by_least_;
  std::vector<Index> critical_;
  std::vector<Bytes> offsets_;
};

}  // namespace

Found search(const std::vector<Block>& blocks, Index cycle, Bytes capacity, std::int64_t steps) {
  if (blocks.empty()) return {Verdict::placed, {}};
  if (blocks.size() > most_searched) return {Verdict::undecided, {}};
  return Searcher(blocks, cycle, capacity).run(steps);
}

}  // namespace tensile::placement
