// What a call was refused with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace pleat::testing {

// The message of the base::Error that `call` throws; empty when it throws none.
template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const base::Error& error) {
    return error.what();
  }
  return "";
}

// The same, where the error must carry `code`.
template <class Call>
std::string message_of(base::ExitCode code, Call&& call) {
  return message_of([&] {
    try {
      call();
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      throw;
    }
  });
}

// The message of a call that must be refused: the test fails where it is not.
template <class Call>
std::string refusal(Call&& call) {
  const std::string message = message_of(call);
  EXPECT_FALSE(message.empty()) << "nothing was refused";
  return message;
}

}  // namespace pleat::testing
