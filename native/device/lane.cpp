#include "lane.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "fault.hpp"
#include "forks.hpp"

namespace tensile {
namespace {

constexpr std::chrono::nanoseconds spin_time = std::chrono::microseconds(100);

// Blocks all signals while a lane's thread is created. Python runs signal handlers in its main thread, so a lane's
// thread must not receive signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

struct Copy {
  std::uint64_t number;
  std::byte* to;
  const std::byte* from;
  std::size_t size_bytes;
  std::uint64_t queued_ns;
};

}  // namespace

struct Lane::State {
  State(LaneClock lane_clock, Engine lane_engine)
      : clock(lane_clock),
        engine(std::move(lane_engine)),
        chunk_bytes(engine.chunk_bytes ? *engine.chunk_bytes : clock.chunk_bytes()) {}

  void run(const char* name);
  bool take(Copy& copy);
  void perform(const Copy& copy);
  void perform_paced(const Copy& copy);
  void perform_unpaced(const Copy& copy);
  void finish(std::uint64_t number);
  void check() const;

  LaneClock clock;
  const Engine engine;
  const std::size_t chunk_bytes;
  const unsigned born_after_forks = forks();
  std::uint64_t previous_end_ns = 0;  // used by the lane's thread only

  mutable std::mutex mutex;
  std::condition_variable queued;
  std::condition_variable finished;
  std::deque<Copy> copies;
  std::uint64_t latest = 0;
  bool closing = false;
  std::atomic<std::uint64_t> completed{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // written once, before `failed`

  std::thread thread;
};

Lane::Lane(const char* name, LaneClock clock, Engine engine)
    : state_(std::make_unique<State>(clock, std::move(engine))) {
  // The clock computes nanoseconds per chunk in 64 bits.
  const std::size_t chunk_bytes = state_->chunk_bytes;
  if (chunk_bytes == 0 || chunk_bytes > (std::size_t{1} << 30)) {
    throw Fault(Fault::Kind::invariant, text("chunks of ", chunk_bytes, " bytes: between 1 and 2^30 are possible"));
  }
  const SignalsBlocked blocked;
  state_->thread = std::thread([state = state_.get(), name] { state->run(name); });
}

Lane::~Lane() {
  close();
  // A forked child has no thread to join, and a lock may be held by a thread that exists only in the parent: leak the
  // state.
  if (state_->born_after_forks != forks()) static_cast<void>(state_.release());
}

std::uint64_t Lane::submit(std::byte* to, const std::byte* from, std::size_t size_bytes) {
  State& state = own_state();
  if (size_bytes == 0) throw Fault(Fault::Kind::invariant, "a copy of 0 bytes");
  const std::lock_guard lock(state.mutex);
  if (state.closing) throw Fault(Fault::Kind::invariant, "the device is closed, it copies nothing more");
  state.copies.push_back({++state.latest, to, from, size_bytes, now_ns()});
  state.queued.notify_one();
  return state.latest;
}

bool Lane::done(std::uint64_t number) const {
  state_->check();
  if (number <= state_->completed.load(std::memory_order_acquire)) return true;
  if (number > latest()) throw Fault(Fault::Kind::invariant, text("copy ", number, " was never queued"));
  return false;
}

bool Lane::wait_for(std::uint64_t number, std::chrono::nanoseconds limit) {
  if (done(number)) return true;
  State& state = own_state();
  const auto start = std::chrono::steady_clock::now();
  // Waking up takes tens of microseconds, and most copies that a caller has to wait for end sooner: spin first.
  while (std::chrono::steady_clock::now() < start + std::min(limit, spin_time)) {
    if (number <= state.completed.load(std::memory_order_acquire)) return done(number);
    std::this_thread::yield();
  }
  std::unique_lock lock(state.mutex);
  const bool ended = state.finished.wait_until(
      lock, start + limit, [&] { return number <= state.completed.load(std::memory_order_relaxed); });
  state.check();
  return ended;
}

std::uint64_t Lane::latest() const {
  const State& state = own_state();
  const std::lock_guard lock(state.mutex);
  return state.latest;
}

void Lane::close() noexcept {
  if (state_->born_after_forks != forks() || !state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->queued.notify_one();
  }
  state_->thread.join();
}

Lane::State& Lane::own_state() const {
  if (state_->born_after_forks != forks()) {
    throw Fault(Fault::Kind::invariant, "the device was opened before this process was forked",
                "Open the device in the process that uses it.");
  }
  return *state_;
}

void Lane::State::run(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // wake up on time instead of up to 50 us late, which is the default
  Copy copy{};
  while (take(copy)) {
    perform(copy);
    finish(copy.number);
  }
}

bool Lane::State::take(Copy& copy) {
  std::unique_lock lock(mutex);
  queued.wait(lock, [&] { return closing || !copies.empty(); });
  if (copies.empty()) return false;
  copy = copies.front();
  copies.pop_front();
  return true;
}

void Lane::State::perform(const Copy& copy) {
  if (failed.load(std::memory_order_relaxed)) return;  // an earlier copy failed, so this copy must not take place
  try {
    if (engine.pace == Pace::link) {
      perform_paced(copy);
    } else {
      perform_unpaced(copy);
    }
  } catch (...) {
    failure = std::current_exception();
    failed.store(true, std::memory_order_release);
  }
}

void Lane::State::perform_paced(const Copy& copy) {
  for (std::size_t offset = 0; offset < copy.size_bytes; offset += chunk_bytes) {
    const std::size_t size_bytes = std::min(chunk_bytes, copy.size_bytes - offset);
    const std::uint64_t ready_ns = std::max(copy.queued_ns, previous_end_ns);
    previous_end_ns = clock.reserve(ready_ns, size_bytes);
    engine.copy(copy.to + offset, copy.from + offset, size_bytes);
    if (offset + size_bytes < copy.size_bytes) LaneClock::sleep_until(previous_end_ns);
  }
  clock.be_at(previous_end_ns);
}

void Lane::State::perform_unpaced(const Copy& copy) {
  const std::uint64_t start_ns = now_ns();
  engine.copy(copy.to, copy.from, copy.size_bytes);
  clock.count(now_ns() - start_ns, copy.size_bytes);
}

void Lane::State::check() const {
  if (failed.load(std::memory_order_acquire)) std::rethrow_exception(failure);
}

void Lane::State::finish(std::uint64_t number) {
  const std::lock_guard lock(mutex);
  completed.store(number, std::memory_order_release);
  finished.notify_all();
}

}  // namespace tensile
