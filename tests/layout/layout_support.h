// What the tests of layouts share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace pleat::layout {

// What f throws; empty when it does not.
template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace pleat::layout
