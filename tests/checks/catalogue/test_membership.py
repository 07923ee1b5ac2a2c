import torch
from torch import nn

from tests.checks._training import net, result_of

NAME, STRANGER = "NotInOptimizer", "StrangerInOptimizer"


def test_a_layer_that_no_optimizer_holds_is_named():
    model = net()
    result = result_of(NAME, model, optimizer=torch.optim.SGD(model[2].parameters(), lr=0.1))
    assert (result.status, result.rows, result.measured) == ("fail", ("0.weight", "0.bias"), 2)
    both = [torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)]
    result = result_of(NAME, model, optimizer=both)
    assert (result.status, result.message) == ("pass", "4 of 4 trainable parameters are in an optimizer")


def test_a_frozen_layer_needs_no_optimizer():
    model = net()
    model[0].requires_grad_(False)
    assert result_of(NAME, model, optimizer=torch.optim.SGD(model[2].parameters(), lr=0.1)).status == "pass"


def test_parameters_of_another_model_are_counted():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, 3)
    result = result_of(NAME, model, optimizer=optimizer)
    assert (result.status, result.rows) == ("fail", ("2.weight", "2.bias"))
    result = result_of(STRANGER, model, optimizer=optimizer)
    assert (result.status, result.rows, result.measured) == ("fail", ("2.weight", "2.bias"), 2)
    assert "optimizer 0 (SGD) holds 2 parameters that the model does not have, while none holds this one" in result.message
    strange = torch.optim.SGD([*net().parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    model = net()
    result = result_of(STRANGER, model, optimizer=[torch.optim.SGD(model.parameters(), lr=0.1), strange])
    assert result.status == "pass" and result.message.startswith("optimizer 1 (SGD) holds nothing of the model")
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    result = result_of(STRANGER, model, optimizer=optimizer)
    assert (result.status, result.measured) == ("warn", 1)
    assert "holds 1 parameter that the model does not have, beside parameters of the model" in result.message
    assert result_of(NAME, model, optimizer=optimizer).status == "pass"


def test_parameters_of_a_loss_belong_to_the_training():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output, target):
            return self.scale * nn.functional.cross_entropy(output, target)

    model, loss = net(), Scaled()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    assert result_of(STRANGER, model, loss=loss, optimizer=optimizer).status == "pass"
    assert loss.scale.item() == 1


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)], nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_layers_in_a_plain_list_are_named_unless_an_optimizer_holds_them():
    model = Listed()
    result = result_of(NAME, model)
    assert (result.status, result.rows) == ("fail", ("layers[0]", "layers[2]"))
    assert all(each.grad is None for each in model.layers[0].parameters())
    both = [*model.parameters(), *model.layers[0].parameters(), *model.layers[2].parameters()]
    optimizer = torch.optim.SGD(both, lr=0.1)
    assert result_of(NAME, model, optimizer=optimizer).status == "pass"
    assert result_of(STRANGER, model, optimizer=optimizer).status == "warn"
    for layer in model.layers:
        layer.requires_grad_(False)
    assert result_of(NAME, model).status == "pass"
