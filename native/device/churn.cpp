#include "churn.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "fault.hpp"

namespace tensile {
namespace {

constexpr std::size_t most_pieces = 5;

struct Piece {
  std::byte* address;
  std::size_t size_bytes;
};

class Job {
 public:
  Job(Ledger ledger, const Claim& claim, std::uint64_t seed)
      : ledger_(Ledger::attach(ledger.fd())),
        arena_(std::move(ledger), claim, {}),
        claim_(claim),
        mark_(1 + (claim.slot * 31 + claim.epoch) % 255),
        random_(seed) {}

  // Returns false if the job has no room.
  bool take(std::size_t size_bytes) {
    try {
      ledger_.move(claim_, 0, size_bytes);
    } catch (const Fault& fault) {
      if (fault.kind() != Fault::Kind::memory) throw;
      return false;
    }
    void* address = arena_.hook().allocate(arena_.hook().context, size_bytes);
    if (address == nullptr) {
      ledger_.move(claim_, size_bytes, 0);
      return false;
    }
    pieces_.push_back({static_cast<std::byte*>(address), size_bytes});
    std::memset(address, static_cast<int>(mark_), size_bytes);
    return true;
  }

  // Free a random piece. Returns false if its bytes have changed.
  bool free_random_piece() {
    std::swap(pieces_[random_() % pieces_.size()], pieces_.back());
    const Piece piece = pieces_.back();
    pieces_.pop_back();
    const bool unchanged = std::all_of(piece.address, piece.address + piece.size_bytes,
                                       [&](std::byte byte) { return byte == std::byte(mark_); });
    arena_.free(piece.address);
    ledger_.move(claim_, piece.size_bytes, 0);
    return unchanged;
  }

  bool turn(std::size_t most_bytes) {
    if (pieces_.size() < most_pieces && take(1 + random_() % most_bytes)) return true;
    return pieces_.empty() || free_random_piece();
  }

 private:
  Ledger ledger_;
  Arena arena_;
  const Claim claim_;
  const std::uint64_t mark_;
  std::minstd_rand random_;
  std::vector<Piece> pieces_;
};

}  // namespace

void churn(Ledger ledger, const Claim& claim, std::uint64_t seed) {
  const std::size_t most_bytes = 3 * ledger.words().header.region_bytes;
  Job job(std::move(ledger), claim, seed);
  while (job.turn(most_bytes)) {
  }
}

}  // namespace tensile
