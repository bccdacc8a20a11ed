// gradwire/optimizers' pure functions for Python: learning rates, the noise scale, large batches.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "gradwire/bindings/layers.h"
#include "gradwire/optimizers/large_batch.h"
#include "gradwire/optimizers/noise_scale.h"
#include "gradwire/optimizers/schedule.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;

template <class Schedule>
Schedule checked(const Schedule& schedule) {
  schedule.check();
  check(schedule.warmup_steps <= schedule.total_steps, "schedule: warmup_steps is ",
        schedule.warmup_steps, ", must be at most total_steps, ", schedule.total_steps);
  return schedule;
}

void bind_rates(py::module_& module) {
  module.def("warmup", &warmup, py::arg("base"), py::arg("step"), py::arg("warmup_steps"),
             "base * (step + 1) / warmup_steps while step < warmup_steps, then base.");
  module.def("scale_linearly", &scale_linearly, py::arg("rate"), py::arg("from_batch"),
             py::arg("batch"),
             "rate * batch / from_batch: of SGD, with a warm-up (Goyal et al., arXiv 1706.02677).");
  module.def(
      "scale_by_root", &scale_by_root, py::arg("rate"), py::arg("from_batch"), py::arg("batch"),
      "rate * sqrt(batch / from_batch): of LAMB (You et al., arXiv 1904.00962) and others whose "
      "steps do not grow with their gradients.");
  py::class_<PolynomialSchedule>(
      module, "PolynomialSchedule",
      "A warm-up to base, then end + (base - end) * (1 - progress) ** power to total_steps.")
      .def(py::init(
               [](double base, uint64_t total, uint64_t warmup_steps, double power, double end) {
                 return checked(PolynomialSchedule{base, warmup_steps, total, power, end});
               }),
           py::arg("base"), py::arg("total_steps"), py::arg("warmup_steps") = 0,
           py::arg("power") = 1.0, py::arg("end") = 0.0)
      .def("at", &PolynomialSchedule::at, py::arg("step"), "The learning rate of step 0, 1, ..")
      .def_readonly("base", &PolynomialSchedule::base, "What it warms up to.")
      .def_readonly("warmup_steps", &PolynomialSchedule::warmup_steps, "Steps of the warm-up.")
      .def_readonly("total_steps", &PolynomialSchedule::total_steps, "Steps until end is reached.")
      .def_readonly("power", &PolynomialSchedule::power, "Of the decay.")
      .def_readonly("end", &PolynomialSchedule::end, "Where it ends.")
      .def("__repr__", [](const PolynomialSchedule& s) {
        return concat("PolynomialSchedule(", s.base, ", ", s.total_steps,
                      ", warmup_steps=", s.warmup_steps, ", power=", s.power, ", end=", s.end, ")");
      });
  py::class_<CosineSchedule>(
      module, "CosineSchedule",
      "A warm-up to base, then end + (base - end) * (1 + cos(pi * progress)) / 2 to total_steps "
      "(arXiv 1608.03983, without restarts).")
      .def(py::init([](double base, uint64_t total, uint64_t warmup_steps, double end) {
             return checked(CosineSchedule{base, warmup_steps, total, end});
           }),
           py::arg("base"), py::arg("total_steps"), py::arg("warmup_steps") = 0,
           py::arg("end") = 0.0)
      .def("at", &CosineSchedule::at, py::arg("step"), "The learning rate of step 0, 1, ..")
      .def_readonly("base", &CosineSchedule::base, "What it warms up to.")
      .def_readonly("warmup_steps", &CosineSchedule::warmup_steps, "Steps of the warm-up.")
      .def_readonly("total_steps", &CosineSchedule::total_steps, "Steps until end is reached.")
      .def_readonly("end", &CosineSchedule::end, "Where it ends.")
      .def("__repr__", [](const CosineSchedule& s) {
        return concat("CosineSchedule(", s.base, ", ", s.total_steps,
                      ", warmup_steps=", s.warmup_steps, ", end=", s.end, ")");
      });
}

void bind_noise_scale(py::module_& module) {
  py::class_<NoiseScale>(
      module, "NoiseScale",
      "About how large a batch still speeds training up, from the gradients of data-parallel ranks "
      "and their mean (McCandlish et al., arXiv 1812.06162, appendix A.1).\n\n"
      "rank_batch: examples of one rank's gradient; decay: what a step's estimate is worth in the "
      "next one's averages.")
      .def(py::init<uint64_t, uint64_t, double>(), py::arg("rank_batch"), py::arg("ranks"),
           py::arg("decay") = 0.99)
      .def("add", &NoiseScale::add, py::arg("mean_of_squares"), py::arg("square_of_mean"),
           "One step: the mean over ranks of their gradients' squared norms, and the squared norm "
           "of "
           "the mean gradient.\n\nRaises:\n    InvalidArgument: one is not finite and >= 0; the "
           "step "
           "is forgotten.")
      .def_property_readonly("steps", &NoiseScale::steps, "Steps added.")
      .def_property_readonly("gradient_square", &NoiseScale::gradient_square,
                             "The squared norm of the true gradient; None before the first step.")
      .def_property_readonly("noise", &NoiseScale::noise,
                             "The sum of its elements' variances over single examples, or None.")
      .def_property_readonly("value", &NoiseScale::value,
                             "noise / gradient_square, in examples; None after too few steps.")
      .def("rate_for", &NoiseScale::rate_for, py::arg("rate"), py::arg("at_batch"),
           py::arg("batch"),
           "The learning rate at batch where rate is the best one at at_batch (equation 2.10), or "
           "None.")
      .def("steps_for", &NoiseScale::steps_for, py::arg("steps"), py::arg("at_batch"),
           py::arg("batch"),
           "How many steps batch takes to get as far as steps of at_batch (equation 2.12), or "
           "None.")
      .def("__repr__", [](const NoiseScale& scale) {
        const std::optional<double> value = scale.value();
        return concat("<gradwire.NoiseScale of ", scale.steps(),
                      " steps: ", value ? concat(*value, " examples") : "not known yet", ">");
      });
}

void bind_large_batch(py::module_& module) {
  py::class_<LargeBatch>(module, "LargeBatch", "What large_batch() recommends.")
      .def_property_readonly(
          "optimizer", [](const LargeBatch& large) { return to_string(large.optimizer); },
          "The spec, for make_optimizer().")
      .def_readonly("schedule", &LargeBatch::schedule,
                    "Of the learning rate; its total_steps are the run's.")
      .def_property_readonly(
          "learning_rate", [](const LargeBatch& large) { return large.schedule.base; },
          "What the schedule warms up to.")
      .def_readonly("why", &LargeBatch::why, "The rules that were used, with their sources.")
      .def("__repr__", [](const LargeBatch& large) {
        return concat("LargeBatch('", to_string(large.optimizer),
                      "', learning_rate=", large.schedule.base,
                      ", warmup_steps=", large.schedule.warmup_steps,
                      ", total_steps=", large.schedule.total_steps, ")");
      });
  module.def(
      "large_batch",
      [](const std::string& optimizer, double learning_rate, uint64_t batch, uint64_t to_batch,
         uint64_t examples, double epochs, double warmup_epochs, std::optional<double> noise_scale,
         bool drop_last) {
        return large_batch({.optimizer = parse_optimizer(optimizer),
                            .learning_rate = learning_rate,
                            .batch = batch,
                            .examples = examples,
                            .epochs = epochs,
                            .warmup_epochs = warmup_epochs,
                            .drop_last = drop_last,
                            .noise_scale = noise_scale},
                           to_batch);
      },
      py::arg("optimizer"), py::arg("learning_rate"), py::arg("batch"), py::arg("to_batch"),
      py::kw_only(), py::arg("examples"), py::arg("epochs"), py::arg("warmup_epochs") = 0.0,
      py::arg("noise_scale") = py::none(), py::arg("drop_last") = true,
      "From a setting that works at batch, the setting for to_batch over the same epochs, by "
      "published rules: a start that needs no tuning. Batches are of all ranks together. Biases "
      "and norms should be a group with weight_decay 0 and adapt False. noise_scale: "
      "NoiseScale.value where it was measured, above which rates hardly grow. drop_last: the "
      "schedule's steps are epochs of examples // to_batch, as of a DataLoader with "
      "drop_last=True; "
      "False counts an epoch's last batch that is not full, too.\n\n"
      "Raises:\n    InvalidArgument: a batch above the examples, a rate, number of epochs or "
      "noise scale that is not positive.");
}

}  // namespace

void bind_schedules(py::module_& module) {
  bind_rates(module);
  bind_noise_scale(module);
  bind_large_batch(module);
}

}  // namespace gradwire::bindings
