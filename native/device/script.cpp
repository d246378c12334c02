#include "script.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fault.hpp"
#include "shared_memory.hpp"

namespace tensile {
namespace {

constexpr std::uint64_t small_bytes = 64;  // the largest allocation that is served from lent memory: a few words
constexpr std::uint64_t lent_bytes = 512;  // size of a lent piece: the alignment that a GPU's kernels may rely on

}  // namespace

Script::Script(const tensile_arena_hook& arena, Shim shim, std::unique_ptr<Pieces> pieces)
    : arena_(arena),
      shim_(shim),
      is_foreign_(pieces != nullptr),
      window_(pieces ? std::move(pieces) : std::make_unique<PagePieces>(arena)),
      hook_{this,
            [](void* context, std::size_t size_bytes) { return static_cast<Script*>(context)->allocate(size_bytes); },
            [](void* context, void* address) {
              return static_cast<Script*>(context)->release(reinterpret_cast<std::uintptr_t>(address));
            },
            arena.begin,
            arena.end,
            1,
            nullptr},
      block_hook_{this, hook_.allocate, hook_.release, window_.begin(), window_.end(), 1, nullptr} {}

bool Script::reserve(std::uint64_t size_bytes, bool gathers) {
  const std::lock_guard lock(changing_);
  const std::uintptr_t kept_end = block() + window_.kept(size_bytes, gathers);
  const auto lost = std::count_if(alive_.begin(), alive_.end(), [&](const Block& block) {
    return is_planned(block.address) && block.address + block.size_bytes > kept_end;
  });
  if (lost != 0) throw Fault(Fault::Kind::invariant, text(lost, " tensors are in the part of a block that changes"));
  const std::uint64_t before_bytes = window_.size_bytes();
  const bool resized = window_.resize(size_bytes, gathers);
  if (!resized) window_.resize(before_bytes);
  if (guard_) guard_->cover(window_.size_bytes());
  return resized;
}

void Script::extend(std::uint64_t size_bytes) {
  const std::lock_guard lock(changing_);
  const std::uintptr_t end = block() + window_.size_bytes();
  const auto lost = std::count_if(alive_.begin(), alive_.end(), [&](const Block& block) {
    return is_planned(block.address) && block.address + block.size_bytes > end;
  });
  if (lost != 0) throw Fault(Fault::Kind::invariant, text(lost, " tensors are in memory that a round has lent"));
  if (window_.size_bytes() + size_bytes > window_.end() - window_.begin()) {
    throw Fault(Fault::Kind::invariant, text("a block of ", window_.size_bytes(), " bytes cannot be extended by ",
                                             size_bytes, ": it has addresses for ", window_.end() - window_.begin()));
  }
  extra_bytes_ = size_bytes;
}

void Script::discard(std::uintptr_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(changing_);
  if (!is_planned(address)) return;
  if (!is_free(address, size_bytes))
    throw Fault(Fault::Kind::invariant,
                text("a tensor lies in the ", size_bytes, " bytes that are to be given back"));
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + size_bytes) / page * page;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_REMOVE);
}

void Script::be_strict(std::string who) {
  const std::lock_guard lock(changing_);
  guard_ = std::make_unique<Guard>(std::move(who), block());
  for (const Block& block : alive_) {
    if (is_planned(block.address)) guard_->open(block.address, block.size_bytes, "a tensor", position_);
  }
  guard_->cover(window_.size_bytes());
}

void Script::lend(std::uintptr_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(changing_);
  lending_ = size_bytes != 0;
  std::erase_if(slabs_, [&](const Slab& slab) { return slab.address == address; });
  if (lending_) slabs_.push_back({address, size_bytes});
}

int Script::serve(const Sheet* sheet) {
  sheet_ = sheet;
  followed_ = ~std::uint64_t{0};
  program_ = std::this_thread::get_id();
  if (!known_) {
    if (const int failed = shim_(&block_hook_); failed != 0) return failed;
    known_ = true;
  }
  return shim_(&hook_);
}

int Script::rest() {
  sheet_ = nullptr;
  return shim_(nullptr);
}

void Script::record() {
  const std::lock_guard lock(changing_);
  recording_ = true;
  moment_ = 0;
  records_.clear();
  open_.clear();
}

std::vector<Record> Script::recorded() {
  const std::lock_guard lock(changing_);
  recording_ = false;
  open_.clear();
  return std::move(records_);
}

ScriptUsage Script::usage() const {
  const std::lock_guard lock(changing_);
  return usage_;
}

std::vector<Excess> Script::take_excess() {
  const std::lock_guard lock(changing_);
  return excess_.take();
}

void Script::reset_high_water() {
  const std::lock_guard lock(changing_);
  usage_.high_water_bytes = usage_.used_bytes;
}

void* Script::allocate(std::uint64_t size_bytes) {
  const bool mine = std::this_thread::get_id() == program_;
  const std::lock_guard lock(changing_);
  unlisted_ = false;
  std::uintptr_t address = mine && sheet_ != nullptr ? take_planned(size_bytes) : 0;
  if (address == 0 && mine) address = take_lent(size_bytes);
  if (is_lent(address)) return reinterpret_cast<void*>(address);
  if (address == 0 && unlisted_) address = take_room(size_bytes);
  if (address == 0) {
    address = take_unplanned(size_bytes);
    if (unlisted_) {
      usage_.mismatched += next_ < sheet_->first[position_ + 1];
      if (address != 0 || !is_never_served(size_bytes)) excess_.note(position_, address, size_bytes);
    }
  }
  if (address == 0) return nullptr;
  if (guard_ && is_planned(address)) guard_->open(address, size_bytes, name_of(next_ - 1), position_);
  usage_.elsewhere += !mine;
  alive_.insert(at(address), {address, size_bytes});
  usage_.used_bytes += size_bytes;
  usage_.high_water_bytes = std::max(usage_.high_water_bytes, usage_.used_bytes);
  if (recording_) {
    open_[address] = records_.size();
    records_.push_back({position_, size_bytes, address, moment_++, Record::never});
  }
  return reinterpret_cast<void*>(address);
}

int Script::release(std::uintptr_t address) {
  const std::lock_guard lock(changing_);
  if (is_lent(address)) return 0;
  const auto entry = at(address);
  if (entry == alive_.end() || entry->address != address) return -1;
  usage_.used_bytes -= entry->size_bytes;
  alive_.erase(entry);
  if (const auto record = recording_ ? open_.find(address) : open_.end(); record != open_.end()) {
    records_[record->second].released_at = moment_++;
    open_.erase(record);
  }
  if (guard_ && is_planned(address)) guard_->shut(address, position_);
  if (is_planned(address)) return 0;
  excess_.release(address);
  return arena_.release(arena_.context, reinterpret_cast<void*>(address));
}

// Return the address of the position's next planned allocation of this size. It skips entries of other sizes, so an
// allocation that does not occur does not shift the addresses of those after it.
std::uintptr_t Script::take_planned(std::uint64_t size_bytes) {
  if (planned_bytes() == 0 || position_ >= sheet_->first.size() - 1) return 0;
  if (position_ != followed_) {
    followed_ = position_;
    next_ = sheet_->first[position_];
  }
  const std::uint32_t stop = sheet_->first[position_ + 1];
  std::uint32_t entry = next_;
  while (entry < stop && sheet_->placed[entry].size_bytes != size_bytes) ++entry;
  if (entry == stop) {
    unlisted_ = true;
    return 0;
  }
  next_ = entry + 1;
  const std::uintptr_t address = block() + sheet_->placed[entry].offset_bytes;
  if (!is_free(address, size_bytes)) {
    ++usage_.occupied;
    return 0;
  }
  ++usage_.planned;
  return address;
}

// Return the first free place in the position's room. It is memory that the plan has for the operator's scratch.
std::uintptr_t Script::take_room(std::uint64_t size_bytes) {
  if (position_ >= sheet_->rooms.size()) return 0;
  const Placed& room = sheet_->rooms[position_];
  if (room.offset_bytes + room.size_bytes > planned_bytes()) return 0;
  const std::uintptr_t begin = block() + room.offset_bytes;
  std::uint64_t offset = 0;
  auto next = at(begin);
  if (next != alive_.begin() && std::prev(next)->address + std::prev(next)->size_bytes > begin) --next;
  for (; offset + size_bytes <= room.size_bytes; ++next) {
    if (next == alive_.end() || next->address >= begin + offset + size_bytes) {
      ++usage_.planned;
      return begin + offset;
    }
    offset = rounded_up(next->address + next->size_bytes - begin, ExcessLog::unit_bytes);
  }
  return 0;
}

// Return a piece of lent memory that was never used before: memory freed while an iteration is recorded is still used
// by every launch of the recording.
std::uintptr_t Script::take_lent(std::uint64_t size_bytes) {
  if (!lending_ || size_bytes > small_bytes) return 0;
  Slab& slab = slabs_.back();
  if (slab.taken_bytes + lent_bytes > slab.size_bytes) return 0;
  const std::uintptr_t address = slab.address + slab.taken_bytes;
  slab.taken_bytes += lent_bytes;
  return address;
}

bool Script::is_lent(std::uintptr_t address) const {
  return std::any_of(slabs_.begin(), slabs_.end(),
                     [&](const Slab& slab) { return address - slab.address < slab.size_bytes; });
}

// A GPU's operators ask for memory that the whole device does not have, and use another algorithm when it is refused.
bool Script::is_never_served(std::uint64_t size_bytes) const {
  return is_foreign_ && size_bytes > arena_.end - arena_.begin;
}

std::string Script::name_of(std::uint32_t entry) const {
  return entry < sheet_->names.size() ? sheet_->names[entry] : "a tensor";
}

std::uintptr_t Script::take_unplanned(std::uint64_t size_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(arena_.allocate(arena_.context, size_bytes));
  usage_.unplanned += address != 0;
  return address;
}

std::vector<Script::Block>::iterator Script::at(std::uintptr_t address) {
  return std::lower_bound(alive_.begin(), alive_.end(), address,
                          [](const Block& block, std::uintptr_t key) { return block.address < key; });
}

bool Script::is_free(std::uintptr_t address, std::uint64_t size_bytes) {
  const std::uintptr_t offset = address - block();
  if (offset > planned_bytes() || size_bytes > planned_bytes() - offset) return false;
  const auto next = at(address);
  if (next != alive_.end() && next->address < address + size_bytes) return false;
  return next == alive_.begin() || std::prev(next)->address + std::prev(next)->size_bytes <= address;
}

}  // namespace tensile
