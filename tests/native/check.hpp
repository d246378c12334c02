// A test runner in a page: TEST registers, CHECK counts and goes on, CHECK_FAULT expects a fault by kind and words.
#pragma once

#include <functional>
#include <string>

#include "fault.hpp"

namespace check {

bool add(const char* name, std::function<void()> body);
void fail(const char* file, int line, const std::string& what);
void expect_fault(const char* file, int line, tensile::Fault::Kind kind, const std::string& words,
                  const std::function<void()>& body);

// Polls; raises an invariant fault, which fails the test, when it takes longer than a minute.
void wait_until(const std::function<bool()>& condition);

// Ten times as slow as the rest; it looks for races, and finds those of a loop in few of its turns.
#ifdef __SANITIZE_THREAD__
constexpr bool under_thread_sanitizer = true;
#else
constexpr bool under_thread_sanitizer = false;
#endif

// How many random scenes to draw.
constexpr unsigned int draws(unsigned int all) { return under_thread_sanitizer ? all / 5 : all; }

template <typename Left, typename Right>
void equal(const char* file, int line, const char* source, const Left& left, const Right& right) {
  if (!(left == right)) fail(file, line, tensile::text(source, ": ", left, " is not ", right));
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const bool name##_added = check::add(#name, &name); \
  static void name()

#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, #condition)

#define CHECK_EQUAL(left, right) check::equal(__FILE__, __LINE__, #left " == " #right, left, right)

#define CHECK_FAULT(kind, words, expression) \
  check::expect_fault(__FILE__, __LINE__, tensile::Fault::Kind::kind, words, [&] { static_cast<void>(expression); })
