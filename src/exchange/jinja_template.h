// A chat template of strings (data/chat/chat_template.h) as the Jinja template that writes the same text, for
// tokenizer.apply_chat_template of transformers and everything else that reads chat_template.jinja.
#pragma once

#include <string>

#include "data/chat/chat_template.h"

namespace pleat::exchange {

// With add_generation_prompt the text ends in the assistant's prefix, else in the template's end. Roles the template
// does not have, and tools, raise an exception as they are refused here. A developer speaks as the system.
std::string jinja_template(const data::ChatTemplate& chat);

}  // namespace pleat::exchange
