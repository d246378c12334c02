#include "ledger.hpp"

#include <algorithm>
#include <memory>
#include <new>

#include "fault.hpp"
#include "futex.hpp"

namespace tensile {

using layout::Intent;
using layout::Tally;
using layout::Word;

namespace {

// All memory orders are sequentially consistent: a grant and a move each write one word and then read the word that
// the other writes. Weaker orders are not measurably faster here on the machines that we run on.

void raise_to(Word& mark, std::uint64_t value) {
  std::uint64_t current = mark.load();
  while (current < value && !mark.compare_exchange_weak(current, value)) {
  }
}

bool is_open(const Intent& intent, const Tally& tally) { return intent.sequence != tally.sequence; }

// Return the bytes that the slot uses now, plus those that its open move is about to take.
std::uint64_t promised_bytes(const layout::Slot& record) {
  const Intent intent = Intent::unpacked(record.intent.load());
  const Tally tally = Tally::unpacked(record.tally.load());
  const bool coming = intent.sequence == layout::next(tally.sequence) && intent.change_bytes > 0;
  return tally.used_bytes + (coming ? static_cast<std::uint64_t>(intent.change_bytes) : 0);
}

// Return the bytes that a slot has in the pool's present tally: those of its own tally, and the change of its open
// move if the move has reached the pool. The caller reads the pool's tally before this reads `posted`, and `posted`
// is written before the tally is replaced.
std::uint64_t share_bytes(const layout::Slot& record, std::uint32_t slot, const Tally& pool, const Intent& intent) {
  const Tally own = Tally::unpacked(record.tally.load());
  if (!is_open(intent, own)) return own.used_bytes;
  const bool signs_pool = pool.slot == slot && pool.sequence == intent.sequence;
  const bool was_posted = signs_pool || record.posted.load() == intent.sequence;
  return own.used_bytes + (was_posted ? static_cast<std::uint64_t>(intent.change_bytes) : 0);
}

constexpr std::uint64_t epoch_mask = (std::uint64_t{1} << 20) - 1;  // the bits of an epoch that a HostShare holds

constexpr std::uint64_t ledger_bytes(std::uint64_t region_count) {
  return sizeof(layout::Ledger) + region_count * sizeof(Word);
}

void check_number(std::uint32_t slot) {
  if (slot >= layout::slot_count) {
    throw Fault(Fault::Kind::invariant, text("slot ", slot, ": the device has slots 0 to ", layout::slot_count - 1));
  }
}

void check_shape(const DeviceShape& shape) {
  if (shape.region_bytes == 0 || shape.capacity_bytes < shape.region_bytes ||
      shape.capacity_bytes > layout::max_bytes) {
    throw Fault(Fault::Kind::invariant,
                text("a device of ", shape.capacity_bytes, " bytes in regions of ", shape.region_bytes,
                     " bytes: it must hold a region and at most ", layout::max_bytes, " bytes"));
  }
  if (shape.capacity_bytes / shape.region_bytes > layout::max_regions) {
    throw Fault(Fault::Kind::device,
                text("a device of ", shape.capacity_bytes, " bytes in regions of ", shape.region_bytes, " bytes has ",
                     shape.capacity_bytes / shape.region_bytes, " regions, and at most ", layout::max_regions,
                     " are possible"),
                "Set region_bytes higher.");
  }
  if (shape.memory_directory && shape.region_bytes % page_bytes() != 0) {
    throw Fault(Fault::Kind::device,
                text("a region of ", shape.region_bytes, " bytes is not a multiple of the ", page_bytes(),
                     " bytes of a page of memory"),
                text("Set region_bytes to a multiple of ", page_bytes(), "."));
  }
  if (shape.out_bytes_per_s == 0 || shape.in_bytes_per_s == 0) {
    throw Fault(Fault::Kind::invariant,
                text("a device whose links carry ", shape.out_bytes_per_s, " bytes/s out and ", shape.in_bytes_per_s,
                     " bytes/s in: both must be above 0"));
  }
}

[[noreturn]] void throw_stale(const Claim& claim, std::uint64_t epoch) {
  throw Fault(Fault::Kind::device,
              text("slot ", claim.slot, ": epoch ", claim.epoch, " is over, the device's ledger is at epoch ", epoch),
              "The controller has taken this slot back; this process must end.");
}

[[noreturn]] void throw_unclaimed(std::uint32_t slot, std::uint64_t epoch) {
  throw Fault(Fault::Kind::invariant, text("slot ", slot, ": nobody has claimed it (epoch ", epoch, ")"));
}

[[noreturn]] void throw_over_grant(std::uint32_t slot, std::uint64_t used, std::uint64_t freed, std::uint64_t taken,
                                   std::uint64_t granted) {
  throw Fault(Fault::Kind::memory,
              text("slot ", slot, ": taking ", taken, " bytes after giving back ", freed, " of ", used,
                   " bytes in use exceeds the grant of ", granted, " bytes by ", used - freed + taken - granted),
              "Ask the controller for a larger grant, or follow a plan with a lower peak.");
}

}  // namespace

Ledger::Ledger(SharedMemory memory)
    : memory_(std::move(memory)),
      words_(std::launder(reinterpret_cast<layout::Ledger*>(memory_.address()))),
      regions_(std::launder(reinterpret_cast<Word*>(memory_.address() + sizeof(layout::Ledger))),
               words_->header.region_count),
      host_shares_(words_->host_shares.data(), words_->header.host_bytes) {}

Ledger Ledger::create(const DeviceShape& shape) {
  check_shape(shape);
  const std::uint64_t region_count = shape.capacity_bytes / shape.region_bytes;
  const std::uint64_t own_bytes = ledger_bytes(region_count);
  const std::uint64_t memory_offset = shape.memory_directory ? rounded_up(own_bytes, page_bytes()) : 0;
  const std::uint64_t file_bytes =
      shape.memory_directory ? memory_offset + region_count * shape.region_bytes : own_bytes;
  SharedMemory memory =
      SharedMemory::create("tensile-device", shape.memory_directory.value_or(""), file_bytes, own_bytes);
  auto* words = new (memory.address()) layout::Ledger();
  std::uninitialized_value_construct_n(reinterpret_cast<Word*>(memory.address() + sizeof(layout::Ledger)),
                                       region_count);
  words->header.version = layout::version;
  words->header.slot_count = layout::slot_count;
  words->header.capacity_bytes = shape.capacity_bytes;
  words->header.region_bytes = shape.region_bytes;
  words->header.region_count = region_count;
  words->header.memory_offset = memory_offset;
  words->header.host_bytes = std::min(shape.host_bytes, layout::max_bytes);
  words->out.bytes_per_s = shape.out_bytes_per_s;
  words->in.bytes_per_s = shape.in_bytes_per_s;
  for (layout::Slot& slot : words->slots) slot.epoch = 1;
  for (Word& share : words->host_shares) share = layout::HostShare{1, 0}.packed();
  for (layout::Passage& passage : words->passages) passage.lent_share = layout::HostShare{1, 0}.packed();
  words->header.magic = layout::magic;
  return Ledger(std::move(memory));
}

Ledger Ledger::attach(int fd) {
  const SharedMemory start = SharedMemory::attach(fd, sizeof(layout::Ledger));
  const auto& header = *std::launder(reinterpret_cast<const layout::Header*>(start.address()));
  if (header.magic.load() != layout::magic) {
    throw Fault(Fault::Kind::device, text("descriptor ", fd, " is no device ledger"),
                "Pass the descriptor that Ledger.create made.");
  }
  if (header.version != layout::version) {
    throw Fault(Fault::Kind::device,
                text("the device ledger has layout ", header.version, ", this process knows ", layout::version),
                "Run controller and trainers from one installation.");
  }
  return Ledger(SharedMemory::attach(fd, ledger_bytes(header.region_count)));
}

Claim Ledger::claim_slot(std::uint64_t pid) {
  for (std::uint32_t slot = 0; slot < layout::slot_count; ++slot) {
    layout::Slot& record = words_->slots[slot];
    std::uint64_t state = layout::state_free;
    if (!record.state.compare_exchange_strong(state, layout::state_claimed)) continue;
    record.pid = pid;
    return {slot, record.epoch.load()};
  }
  throw Fault(Fault::Kind::device, text("all ", layout::slot_count, " slots of the device are taken"),
              "Run fewer jobs at once on this device.");
}

void Ledger::set_pid(std::uint32_t slot, std::uint64_t pid) { claimed(slot).pid = pid; }

std::uint64_t Ledger::grant(std::uint32_t slot, std::uint64_t size_bytes) {
  layout::Slot& record = claimed(slot);
  const Claim claim{slot, record.epoch};
  const std::uint64_t region_bytes = words_->header.region_bytes;
  const std::uint64_t target_count = size_bytes / region_bytes + (size_bytes % region_bytes != 0 ? 1 : 0);
  if (target_count > regions_.count()) throw_full(claim, size_bytes);
  const std::uint64_t target_bytes = target_count * region_bytes;
  if (target_bytes < record.granted_bytes) lower(slot, target_bytes);
  const std::uint64_t owned_count = regions_.held_count(claim);
  if (owned_count < target_count && !regions_.hand_out(claim, target_count - owned_count)) {
    throw_full(claim, target_bytes);
  }
  record.granted_bytes = target_bytes;
  if (owned_count > target_count) regions_.take_back(claim, owned_count - target_count, wipe());
  return target_bytes;
}

void Ledger::throw_full(const Claim& claim, std::uint64_t size_bytes) const {
  const std::uint64_t absent = regions_.absent_count();
  const std::uint64_t others = regions_.count() - regions_.free_count() - absent - regions_.held_count(claim);
  const std::string outside =
      absent == 0 ? "" : text(", of which other programs have ", absent * words_->header.region_bytes);
  throw Fault(Fault::Kind::memory,
              text("slot ", claim.slot, ": a grant of ", size_bytes, " bytes does not fit beside ",
                   others * words_->header.region_bytes, " bytes granted to others on a device of ",
                   words_->header.capacity_bytes, " bytes", outside),
              "Lower other grants first, or wait until a job ends.");
}

// This writes the lower grant before it reads the bytes in use, and a move writes its intent before it reads the
// grant. So if both happen at once, at least one of them notices the other.
void Ledger::lower(std::uint32_t slot, std::uint64_t target_bytes) {
  layout::Slot& record = words_->slots[slot];
  const std::uint64_t before_bytes = record.granted_bytes.exchange(target_bytes);
  const std::uint64_t over_bytes = excess_bytes(slot, target_bytes);
  if (over_bytes > 0) {
    record.granted_bytes = before_bytes;
    throw Fault(Fault::Kind::memory,
                text("slot ", slot, ": its grant of ", before_bytes, " bytes cannot be lowered to ", target_bytes,
                     " bytes while ", target_bytes + over_bytes, " bytes are in use"),
                "Lower a grant only after the job has adopted the plan that needs less.");
  }
}

// Return by how much a slot's use exceeds this grant and the bytes that are lent to it. A member of a round raises
// `lent_share` before its use and lowers it after its use, so only equal readings around that of the use tell.
std::uint64_t Ledger::excess_bytes(std::uint32_t slot, std::uint64_t granted_bytes) const {
  for (;;) {
    const std::uint64_t lent = lent_bytes(slot);
    const std::uint64_t needed_bytes = promised_bytes(words_->slots[slot]);
    if (needed_bytes <= granted_bytes + lent) return 0;
    if (lent_bytes(slot) == lent) return needed_bytes - granted_bytes - lent;
  }
}

std::uint64_t Ledger::lent_bytes(std::uint32_t slot) const {
  return layout::HostShare::unpacked(words_->passages[slot].lent_share.load()).size_bytes;
}

void Ledger::add_lent(const Claim& claim, std::int64_t change_bytes) {
  Word& share = words_->passages[claim.slot].lent_share;
  std::uint64_t word = share.load();
  for (;;) {
    const layout::HostShare now = layout::HostShare::unpacked(word);
    if (now.epoch != (claim.epoch & epoch_mask)) throw_stale(claim, words_->slots[claim.slot].epoch);
    const layout::HostShare next{now.epoch, now.size_bytes + static_cast<std::uint64_t>(change_bytes)};
    if (share.compare_exchange_weak(word, next.packed())) return;
  }
}

std::uint64_t Ledger::set_pool(std::uint64_t size_bytes) {
  const std::uint64_t region_bytes = words_->header.region_bytes;
  if (size_bytes == 0) return regions_.unpool(wipe()) * region_bytes;
  const std::uint64_t present = regions_.round_count();
  const std::uint64_t wanted = size_bytes / region_bytes;
  const std::uint64_t added = wanted > present ? regions_.pool(wanted - present) : 0;
  if (added > 0) {
    ++words_->pool.returned;
    wake_all(words_->pool.returned);
  }
  return (present + added) * region_bytes;
}

// Return the function that gives the bytes of regions back to the system; they read as zeros afterwards.
Regions::Wipe Ledger::wipe() const {
  const layout::Header& header = words_->header;
  if (header.memory_offset == 0) return [](Range) {};
  return [this, &header](Range run) {
    punch(memory_.fd(),
          {header.memory_offset + run.offset * header.region_bytes, run.size_bytes * header.region_bytes});
  };
}

void Ledger::revoke_slot(std::uint32_t slot) {
  layout::Slot& record = claimed(slot);
  std::uint64_t state = layout::state_claimed;
  if (!record.state.compare_exchange_strong(state, layout::state_releasing)) throw_unclaimed(slot, record.epoch);
  ++record.epoch;
}

void Ledger::release_slot(std::uint32_t slot) {
  check_number(slot);
  layout::Slot& record = words_->slots[slot];
  if (record.state.load() != layout::state_releasing) revoke_slot(slot);
  // The epoch is over. If the job's process still runs, it can begin no move, because the intent is no longer the one
  // that it expects, and can finish none, because a process that reads the tally written below sees the new epoch.
  std::uint64_t intent_word = record.intent.load();
  Intent intent = Intent::unpacked(intent_word);
  while (!record.intent.compare_exchange_weak(intent_word, Intent{layout::next(intent.sequence), 0}.packed())) {
    intent = Intent::unpacked(intent_word);
  }
  const std::uint64_t last = layout::next(intent.sequence);
  for (;;) {
    std::uint64_t word = words_->pool.tally.load();
    const Tally pool = Tally::unpacked(word);
    const std::uint64_t used_bytes = pool.used_bytes - share_bytes(record, slot, pool, intent);
    if (settle(word) && words_->pool.tally.compare_exchange_strong(word, Tally{last, slot, used_bytes}.packed()))
      break;
  }
  record.tally = Tally{last, slot, 0}.packed();
  record.granted_bytes = 0;
  words_->passages[slot].lent_share = layout::HostShare{record.epoch & epoch_mask, 0}.packed();
  regions_.take_all(slot, wipe());
  ++words_->pool.returned;  // its lent regions are the round's again
  wake_all(words_->pool.returned);
  host_shares_.begin(slot, record.epoch);
  record.high_water_bytes = 0;
  record.pid = 0;
  record.state = layout::state_free;
}

std::uint64_t Ledger::move(const Claim& claim, std::uint64_t freed_bytes, std::uint64_t taken_bytes) {
  layout::Slot& record = live(claim);
  std::uint64_t before_word = record.tally.load();
  live(claim);  // check again: a tally of a later epoch must not be changed
  const Tally before = Tally::unpacked(before_word);
  if (freed_bytes > before.used_bytes) {
    throw Fault(Fault::Kind::invariant, text("slot ", claim.slot, ": giving back ", freed_bytes,
                                             " bytes of which only ", before.used_bytes, " are in use"));
  }
  if (taken_bytes > layout::max_bytes) {
    throw_over_grant(claim.slot, before.used_bytes, freed_bytes, taken_bytes, record.granted_bytes);
  }
  const Intent intent{layout::next(before.sequence),
                      static_cast<std::int64_t>(taken_bytes) - static_cast<std::int64_t>(freed_bytes)};
  publish(claim, record, before, intent);
  const Tally after{intent.sequence, claim.slot, before.used_bytes - freed_bytes + taken_bytes};
  const std::uint64_t granted_bytes = record.granted_bytes.load() + lent_bytes(claim.slot);
  if (taken_bytes > freed_bytes && after.used_bytes > granted_bytes) {
    withdraw(record, before, intent);
    live(claim);  // if the slot was released meanwhile, report that instead
    throw_over_grant(claim.slot, before.used_bytes, freed_bytes, taken_bytes, granted_bytes);
  }
  post(claim, record, intent);
  if (!record.tally.compare_exchange_strong(before_word, after.packed())) throw_stale(claim, record.epoch);
  if (taken_bytes > freed_bytes) raise_to(record.high_water_bytes, after.used_bytes);
  return after.used_bytes;
}

// Step 1 of a move. The grant is read only after this: see `lower`.
void Ledger::publish(const Claim& claim, layout::Slot& record, const Tally& before, const Intent& intent) {
  std::uint64_t word = record.intent.load();
  if (!is_open(Intent::unpacked(word), before) && record.intent.compare_exchange_strong(word, intent.packed()))
    return;
  live(claim);
  throw Fault(Fault::Kind::invariant,
              text("slot ", claim.slot, ": two processes move bytes in epoch ", claim.epoch, " at once"));
}

// A failed exchange means that the slot was released meanwhile, so the intent belongs to a later epoch.
void Ledger::withdraw(layout::Slot& record, const Tally& before, const Intent& intent) {
  std::uint64_t word = intent.packed();
  record.intent.compare_exchange_strong(word, Intent{before.sequence, 0}.packed());
}

// Step 2 of a move: add the change to the pool's tally, signed. The epoch is read after the tally and before its
// replacement. A release advances the epoch and then replaces the tally, so the release is either noticed here or
// makes the replacement fail.
void Ledger::post(const Claim& claim, layout::Slot& record, const Intent& intent) {
  for (;;) {
    std::uint64_t word = words_->pool.tally.load();
    const std::uint64_t epoch = record.epoch.load();
    if (epoch != claim.epoch) throw_stale(claim, epoch);
    const std::uint64_t used_bytes =
        Tally::unpacked(word).used_bytes + static_cast<std::uint64_t>(intent.change_bytes);
    const Tally after{intent.sequence, claim.slot, used_bytes};
    if (settle(word) && words_->pool.tally.compare_exchange_strong(word, after.packed())) return;
  }
}

// Before the pool's tally is replaced, record in `posted` of the slot that signed it that its move has happened, and
// raise the high-water mark. False if the tally has changed, in which case the caller must read all words again.
bool Ledger::settle(std::uint64_t word) {
  const Tally pool = Tally::unpacked(word);
  Word& posted = words_->slots[pool.slot].posted;
  std::uint64_t known = posted.load();
  if (words_->pool.tally.load() != word) return false;  // otherwise `known` could be newer than this signature
  if (known != pool.sequence && !posted.compare_exchange_strong(known, pool.sequence)) return false;
  raise_to(words_->pool.high_water_bytes, pool.used_bytes);
  return true;
}

void Ledger::reset_high_water(const Claim& claim) {
  layout::Slot& record = live(claim);
  record.high_water_bytes = Tally::unpacked(record.tally.load()).used_bytes;
}

void Ledger::check(const Claim& claim) const { live(claim); }

SlotUsage Ledger::usage(std::uint32_t slot) const {
  const layout::Slot& record = claimed(slot);
  const std::uint64_t used_bytes = Tally::unpacked(record.tally.load()).used_bytes;
  return {.slot = slot,
          .epoch = record.epoch,
          .pid = record.pid,
          .granted_bytes = record.granted_bytes,
          .held_bytes = regions_.held_count({slot, record.epoch}) * words_->header.region_bytes,
          .used_bytes = used_bytes,
          .high_water_bytes = std::max(record.high_water_bytes.load(), used_bytes),
          .host_bytes = host_shares_.of(slot),
          .lent_bytes = lent_bytes(slot)};
}

PoolUsage Ledger::usage() const {
  const std::uint64_t region_bytes = words_->header.region_bytes;
  const std::uint64_t absent_bytes = regions_.absent_count() * region_bytes;
  const std::uint64_t used_bytes = Tally::unpacked(words_->pool.tally.load()).used_bytes;
  return {.capacity_bytes = words_->header.capacity_bytes,
          .region_bytes = region_bytes,
          .granted_bytes = (regions_.count() - regions_.free_count() - absent_bytes / region_bytes) * region_bytes,
          .used_bytes = used_bytes,
          .high_water_bytes = std::max(words_->pool.high_water_bytes.load(), used_bytes),
          .host_bytes = host_shares_.sum(),
          .host_limit_bytes = host_shares_.limit_bytes(),
          .absent_bytes = absent_bytes,
          .pooled_bytes = regions_.pooled_count() * region_bytes};
}

std::vector<SlotUsage> Ledger::claimed_slots() const {
  std::vector<SlotUsage> usages;
  for (std::uint32_t slot = 0; slot < layout::slot_count; ++slot) {
    if (words_->slots[slot].state.load() == layout::state_claimed) usages.push_back(usage(slot));
  }
  return usages;
}

layout::Slot& Ledger::claimed(std::uint32_t slot) const {
  check_number(slot);
  layout::Slot& record = words_->slots[slot];
  if (record.state.load() != layout::state_claimed) throw_unclaimed(slot, record.epoch);
  return record;
}

layout::Slot& Ledger::live(const Claim& claim) const {
  check_number(claim.slot);
  layout::Slot& record = words_->slots[claim.slot];
  const std::uint64_t epoch = record.epoch.load();
  if (epoch != claim.epoch) throw_stale(claim, epoch);
  return record;
}

}  // namespace tensile
