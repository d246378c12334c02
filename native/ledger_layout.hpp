// The device's file, version 3: every process that maps it reads and writes exactly this.
//
//   offset  bytes  record
//        0     64  Header   magic, version, slots, capacity, region, regions, memory, host pool
//       64     64  Lane     device to host: rate, clock, totals
//      128     64  Lane     host to device
//      192     64  Pool     the device as a whole: tally, high water
//      256  64*64  Slot     one job each: state, epoch, pid, granted, tally, intent, posted, high water
//     4352   64*8  Word     one job each: its share of the pinned host pool (host_shares.hpp)
//     4864    8*n  Word     one region each, n of them: its owner
//   memory  n*region        the device's memory, from a whole page on, where the device has memory of its own
//
// One record per cache line, so that two jobs never fight over a line that belongs to one of them. Owners change
// too seldom for that.
//
// ## Regions
//
// Region i is the memory from i * region_bytes on, in every process: an offset means the same byte everywhere. Its
// word names the one slot and epoch that own it, and changes by compare-and-swap alone:
//
//   free ──controller: hand out──► empty ──owner: engage──► used ──owner: disengage──► empty
//     ▲                              │ controller: take back   │ controller, when the owner's process is gone
//     └──────────────────────────── wiping ◄───────────────────┘
//
// An owner that is about to place something in an empty region first makes it `used`; when the last use of the last
// thing in it has ended it makes it `empty`, and nothing else is needed to hand it back: whoever lowers a grant
// takes empty regions, and an owner that lost one finds out when it engages it. `wiping` is the controller's alone,
// who gives the region's bytes back to the system (the next owner reads zeros) before it is free. `backed` says
// that the system has set memory aside for all of the region, so that touching it can neither fail nor wait. A region
// whose epoch is over is in quarantine: its owner is dead, but a process that maps it may not be yet. How much is
// granted in all is the number of words that are not free, so a process killed between two instructions leaves no
// second count to mend.
//
// ## Bytes
//
// All bytes in use must stay exact when a process is killed between two instructions. A job's bytes are in two
// places, its slot and the pool, which no instruction changes together. So the pool's word says not only how much
// is used but also who changed it last, in which of its moves (a *tally*), and a move has three steps:
//
//   1. the slot's `intent` says what is about to be added, with the move's sequence number;
//   2. the pool's tally takes it, signed with slot and sequence, by compare-and-swap;
//   3. the slot's own tally takes it, with the same sequence.
//
// Whoever replaces the pool's tally first writes its signature's sequence into `posted` of the slot that signed
// it. So for a process that died with an intent open, step 2 happened exactly if the pool still carries that
// signature or `posted` does. (Attiya, Ben-Baruch and Hendler, PODC 2018, call such objects recoverable.)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tensile::layout {

using Word = std::atomic<std::uint64_t>;

inline constexpr std::uint64_t magic = 0x31454c49534e4554;  // "TENSILE1" as bytes in memory
inline constexpr std::uint32_t version = 3;
inline constexpr std::uint32_t slot_count = 64;
inline constexpr std::size_t line_bytes = 64;

inline constexpr std::uint64_t max_regions = std::uint64_t{1} << 20;  // their words are read one by one

// Values of Slot::state. `releasing` keeps a slot from being claimed before its bytes and regions are back.
inline constexpr std::uint64_t state_free = 0;
inline constexpr std::uint64_t state_claimed = 1;
inline constexpr std::uint64_t state_releasing = 2;

struct alignas(line_bytes) Header {
  Word magic;  // written last: who sees it sees the rest
  std::uint32_t version;
  std::uint32_t slot_count;
  std::uint64_t capacity_bytes;
  std::uint64_t region_bytes;
  std::uint64_t region_count;   // whole regions in the capacity
  std::uint64_t memory_offset;  // where in this file the memory begins; 0 where processes have private memory
  std::uint64_t host_bytes;     // that the pinned memory of all processes keeps to
};

struct alignas(line_bytes) Lane {
  std::uint64_t bytes_per_s;
  Word free_ns;         // CLOCK_MONOTONIC at which all that is reserved so far will have passed
  Word reserved_ns;     // total time reserved
  Word reserved_bytes;  // total bytes it was reserved for
};

struct alignas(line_bytes) Pool {
  Word tally;
  Word high_water_bytes;  // raised by whoever replaces the tally; the mark is max(this, tally.used_bytes)
};

struct alignas(line_bytes) Slot {
  Word state;
  Word epoch;  // advanced when the slot is released: a write with an older one is refused
  Word pid;
  Word granted_bytes;
  Word tally;
  Word intent;
  Word posted;
  Word high_water_bytes;
};

struct Ledger {
  Header header;
  Lane out;
  Lane in;
  Pool pool;
  std::array<Slot, slot_count> slots;
  std::array<Word, slot_count> host_shares;
};

static_assert(Word::is_always_lock_free && sizeof(Word) == 8 && alignof(Word) == 8);
static_assert(sizeof(Header) == 64 && offsetof(Header, capacity_bytes) == 16);
static_assert(sizeof(Lane) == 64 && sizeof(Pool) == 64 && sizeof(Slot) == 64);
static_assert(offsetof(Ledger, out) == 64 && offsetof(Ledger, in) == 128 && offsetof(Ledger, pool) == 192);
static_assert(offsetof(Header, memory_offset) == 40 && offsetof(Header, host_bytes) == 48);
static_assert(offsetof(Ledger, slots) == 256 && offsetof(Ledger, host_shares) == 256 + slot_count * sizeof(Slot));
static_assert(sizeof(Ledger) == offsetof(Ledger, host_shares) + slot_count * sizeof(Word));

// Sequence numbers count a slot's moves and wrap; they are only ever compared for equality with the latest one.
inline constexpr unsigned sequence_bits = 14;
inline constexpr std::uint64_t sequence_mask = (std::uint64_t{1} << sequence_bits) - 1;
inline constexpr unsigned used_bits = 44;
inline constexpr std::uint64_t max_bytes = (std::uint64_t{1} << used_bits) - 1;  // 16 TiB: more than a device has

constexpr std::uint64_t next(std::uint64_t sequence) { return (sequence + 1) & sequence_mask; }

// How many bytes are used, and which move of which slot made it so: 14 bits, 6 bits, 44 bits.
struct Tally {
  std::uint64_t sequence;
  std::uint64_t slot;
  std::uint64_t used_bytes;

  constexpr std::uint64_t packed() const { return sequence << 50 | slot << used_bits | used_bytes; }
  static constexpr Tally unpacked(std::uint64_t word) {
    return {word >> 50, word >> used_bits & (slot_count - 1), word & max_bytes};
  }
};

// What a move is about to add (or, below zero, to give back): 14 bits, 50 bits.
struct Intent {
  std::uint64_t sequence;
  std::int64_t change_bytes;

  constexpr std::uint64_t packed() const {
    return sequence << 50 | (static_cast<std::uint64_t>(change_bytes) & ((std::uint64_t{1} << 50) - 1));
  }
  static constexpr Intent unpacked(std::uint64_t word) {
    return {word >> 50, static_cast<std::int64_t>(word << sequence_bits) >> sequence_bits};
  }
};

// How much of the host pool is a slot's, and in which epoch, of which the word holds the low bits: 20 bits, 44 bits.
struct HostShare {
  std::uint64_t epoch;
  std::uint64_t size_bytes;

  constexpr std::uint64_t packed() const { return epoch << used_bits | size_bytes; }
  static constexpr HostShare unpacked(std::uint64_t word) { return {word >> used_bits, word & max_bytes}; }
};

enum class RegionState : std::uint64_t { free = 0, empty = 1, used = 2, wiping = 3 };

// Who has a region: 2 bits, 1 bit, 6 bits, 55 bits. The word of a free region is 0, as in a new file.
struct Owner {
  RegionState state = RegionState::free;
  bool backed = false;
  std::uint64_t slot = 0;
  std::uint64_t epoch = 0;

  constexpr std::uint64_t packed() const {
    return static_cast<std::uint64_t>(state) << 62 | std::uint64_t{backed} << 61 | slot << 55 | epoch;
  }
  static constexpr Owner unpacked(std::uint64_t word) {
    return {static_cast<RegionState>(word >> 62), (word >> 61 & 1) != 0, word >> 55 & (slot_count - 1),
            word & ((std::uint64_t{1} << 55) - 1)};
  }
  friend constexpr bool operator==(const Owner&, const Owner&) = default;
};

static_assert(Owner{}.packed() == 0);
static_assert(Owner::unpacked(Owner{RegionState::used, true, 63, 5}.packed()) ==
              Owner{RegionState::used, true, 63, 5});
static_assert(sequence_bits + 6 + used_bits == 64 && slot_count == 1U << 6);
static_assert(Intent::unpacked(Intent{sequence_mask, -5}.packed()).change_bytes == -5);
static_assert(Tally::unpacked(Tally{7, 63, max_bytes}.packed()).slot == 63);

}  // namespace tensile::layout
