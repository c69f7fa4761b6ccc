#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "exchange/probe.h"

namespace pleat::apps {

void add_probe(CLI::App& command, Action& chosen) {
  auto o = std::make_shared<exchange::ProbeOptions>();
  CLI::App* c = &command;
  c->add_option("model", o->model_folder, "Model folder (config.json and safetensors)")->required();
  c->add_option("--tokens", o->tokens_path, "Safetensors file with input_ids [batch, length]")->required();
  c->add_option("--out", o->out_path, "Safetensors file to write")->required();
  c->add_flag("--grads", o->gradients, "Also write the gradient of every parameter");
  c->add_flag("--aux-grads", o->aux_gradients,
              "Gradients include the auxiliary losses with their coefficients");
  c->add_flag("--routing", o->routing, "Also write the experts every token went to, and the router's logits");
  c->add_option("--routing-from", o->routing_from,
                "Send tokens to the experts of this file, which a probe with --routing wrote");
  c->add_option("--dtype", o->dtype, "f32, f64, or bf16 (on a GPU)")
      ->capture_default_str()
      ->transform(CLI::Transformer({{"f32", "float32"}, {"f64", "float64"}, {"bf16", "bfloat16"}}))
      ->check(CLI::IsMember({"float32", "float64", "bfloat16"}));
  c->add_option("--device", o->device, "cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  c->add_option("--threads", o->threads, "Worker threads (0: all cores)");
  c->add_option("--set", o->sets,
                "Override a key of the model's config: section.key=value; section.key= takes it out, as if "
                "it were not set (repeatable)")
      ->allow_extra_args(false);
  add_example(*c,
              "pleat probe my-model --tokens ids.safetensors --out probe.safetensors --grads --dtype f64");
  c->callback([o, &chosen] {
    chosen = [o] {
      const exchange::ProbeResult r = exchange::probe(*o);
      if (!r.note.empty()) fmt::print(stderr, "note: {}\n", r.note);
      fmt::print("loss {:.9g}", r.loss);
      if (r.has_aux_loss) fmt::print(", auxiliary loss {:.9g} (before its coefficient)", r.aux_loss);
      fmt::print("; {} tensors written to {}\n", r.num_tensors, o->out_path);
      return 0;
    };
  });
}

}  // namespace pleat::apps
