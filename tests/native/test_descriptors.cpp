#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "check.hpp"
#include "descriptors.hpp"
#include "shared_memory.hpp"

using namespace tensile;

namespace {

struct Pair {
  Pair() {
    std::array<int, 2> numbers{};
    CHECK_EQUAL(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, numbers.data()), 0);
    near = FileDescriptor(numbers[0]);
    far = FileDescriptor(numbers[1]);
  }

  FileDescriptor near;
  FileDescriptor far;
};

int open_descriptors() {
  int count = 0;
  for (int number = 0; number < 1024; ++number) count += ::fcntl(number, F_GETFD) == -1 ? 0 : 1;
  return count;
}

bool same_file(int first, int second) {
  struct stat a {};
  struct stat b {};
  return ::fstat(first, &a) == 0 && ::fstat(second, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

TEST(descriptors_arrive_in_another_process_in_their_order) {
  const SharedMemory first = SharedMemory::create("first", "", 4096, 4096);
  const SharedMemory second = SharedMemory::create("second", "", 4096, 4096);
  Pair pair;
  const pid_t child = ::fork();
  if (child == 0) {
    // Close the descriptors that the fork copied, so that only those received over the socket remain.
    ::close(first.fd());
    ::close(second.fd());
    const auto received = receive_descriptors(pair.far.number(), 2);
    for (const FileDescriptor& descriptor : received) {
      SharedMemory::attach(descriptor.number(), 4096).address()[1] = std::byte{0x5A};
    }
    send_bytes(pair.far.number(), std::array{std::byte{1}});
    ::_exit(0);
  }
  send_descriptors(pair.near.number(), std::array{first.fd(), second.fd()});
  std::array<std::byte, 1> answer{};
  receive_bytes(pair.near.number(), answer);
  CHECK(first.address()[1] == std::byte{0x5A} && second.address()[1] == std::byte{0x5A});
  int status = -1;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
}

TEST(a_full_message_of_descriptors_arrives_and_they_close_at_exec) {
  const SharedMemory memory = SharedMemory::create("memory", "", 4096, 4096);
  const SharedMemory last = SharedMemory::create("last", "", 4096, 4096);
  const Pair pair;
  std::vector<int> numbers(max_descriptors, memory.fd());
  numbers.back() = last.fd();
  send_descriptors(pair.near.number(), numbers);
  const auto received = receive_descriptors(pair.far.number(), max_descriptors);
  CHECK_EQUAL(received.size(), max_descriptors);
  CHECK(same_file(received.front().number(), memory.fd()) && same_file(received.back().number(), last.fd()));
  CHECK_EQUAL(::fcntl(received.front().number(), F_GETFD), FD_CLOEXEC);
}

TEST(messages_of_descriptors_are_received_one_by_one) {
  const SharedMemory memory = SharedMemory::create("memory", "", 4096, 4096);
  const Pair pair;
  for (int message = 0; message < 3; ++message) send_descriptors(pair.near.number(), std::array{memory.fd()});
  for (int message = 0; message < 3; ++message) CHECK_EQUAL(receive_descriptors(pair.far.number(), 1).size(), 1U);
}

TEST(an_unexpected_number_of_descriptors_is_a_fault_and_closes_them) {
  const SharedMemory memory = SharedMemory::create("memory", "", 4096, 4096);
  const Pair pair;
  const int before = open_descriptors();
  send_descriptors(pair.near.number(), std::array{memory.fd(), memory.fd(), memory.fd()});
  CHECK_FAULT(device, "3 of 2 arrived", receive_descriptors(pair.far.number(), 2));
  send_descriptors(pair.near.number(), std::array{memory.fd()});
  CHECK_FAULT(device, "1 of 2 arrived", receive_descriptors(pair.far.number(), 2));
  send_bytes(pair.near.number(), std::array{std::byte{1}});
  CHECK_FAULT(device, "0 of 1 arrived", receive_descriptors(pair.far.number(), 1));
  CHECK_EQUAL(open_descriptors(), before);
  CHECK_FAULT(invariant, "a message of 0 descriptors", send_descriptors(pair.near.number(), {}));
  CHECK_FAULT(invariant, "a message of 254 descriptors", receive_descriptors(pair.far.number(), 254));
}

TEST(a_peer_that_has_closed_its_socket_is_a_fault) {
  const SharedMemory memory = SharedMemory::create("memory", "", 4096, 4096);
  Pair pair;
  pair.far = FileDescriptor();
  std::array<std::byte, 4> bytes{};
  CHECK_FAULT(device, "the other process closed the socket",
              send_descriptors(pair.near.number(), std::array{memory.fd()}));
  CHECK_FAULT(device, "the other process closed the socket", receive_descriptors(pair.near.number(), 1));
  CHECK_FAULT(device, "the other process closed the socket", send_bytes(pair.near.number(), bytes));
  CHECK_FAULT(device, "the other process closed the socket", receive_bytes(pair.near.number(), bytes));
}

TEST(a_peer_that_does_not_answer_within_the_timeout_is_a_fault) {
  const Pair pair;
  const timeval limit{0, 1000};
  CHECK_EQUAL(::setsockopt(pair.near.number(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
  CHECK_FAULT(device, "the other process does not answer", receive_descriptors(pair.near.number(), 1));
}

TEST(an_invalid_descriptor_is_refused) {
  const Pair pair;
  CHECK_FAULT(device, "handing over 1 descriptors: sendmsg failed",
              send_descriptors(pair.near.number(), std::array{-1}));
  CHECK_FAULT(device, "recvmsg failed", receive_descriptors(-1, 1));
}
