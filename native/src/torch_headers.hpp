// What is used of libtorch, in one precompiled header: tensors with autograd, autocast, threads, devices.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/cuda.h>
