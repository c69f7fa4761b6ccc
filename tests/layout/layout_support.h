// What the tests of layouts share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "support/refusal.h"

namespace pleat::layout {

using testing::message_of;

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace pleat::layout
