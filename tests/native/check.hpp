// A minimal test runner: TEST registers a test, CHECK counts a failure and continues, CHECK_FAULT expects a fault of
// a kind whose message contains given words.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include "fault.hpp"

namespace check {

bool add(const char* name, std::function<void()> body);
void fail(const char* file, int line, const std::string& message);
void expect_fault(const char* file, int line, tensile::Fault::Kind kind, const std::string& words,
                  const std::function<void()>& body);

// Poll until the condition is true. Raises an invariant fault, which fails the test, after one minute.
void wait_until(const std::function<bool()>& condition);

// True in a build with the thread sanitizer, which is ten times as slow. The sanitizer finds the races of a loop in a
// few of its iterations, so such builds run fewer.
#ifdef __SANITIZE_THREAD__
constexpr bool under_thread_sanitizer = true;
#else
constexpr bool under_thread_sanitizer = false;
#endif

// True in the daily run, which sets TENSILE_FEW_DRAWS, and under the thread sanitizer: then tests draw fewer random
// scenes and try fewer kinds of failures. The nightly run tries all of them under the address sanitizer.
inline bool few_draws() {
  static const bool few = under_thread_sanitizer || std::getenv("TENSILE_FEW_DRAWS") != nullptr;
  return few;
}

// Return the number of random scenes to draw, given the number that the nightly run draws.
inline unsigned int draws(unsigned int all) { return few_draws() ? all / 5 : all; }

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
